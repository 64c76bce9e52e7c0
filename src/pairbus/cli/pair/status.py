"""`pairbus status`: both sides of a pair, its clients and syphons on this machine, its backlog, and the next step."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli.duration_options import duration_option
from pairbus.cli.loop import run, stop_event
from pairbus.cli.namespace_options import ENTRA, KEPT_OFF, CredentialName, Namespaces
from pairbus.cli.pair.options import BacklogQueueCount, Primary, PrimaryName, Secondary
from pairbus.cli.pipeline.syphon import name_of
from pairbus.cli.table import print_table
from pairbus.cli.trust import CaFile

if TYPE_CHECKING:
    from pairbus.cli.pair.status_facts import Status

EVERY_S = 5.0
CLEAR = "\x1b[H\x1b[2J"  # clears a terminal


def register(app: typer.Typer) -> None:
    """Add the command `pairbus status`."""
    app.command(
        epilog=f"""\b
Examples:
  pairbus status --primary @contoso.txt --secondary @fabrikam.txt
  pairbus status --watch --every 10s
  pairbus status --primary-name contoso --backlog-queue-count 20 --json
  pairbus status --credential default --primary contoso.servicebus.windows.net --secondary HOST
\b
{KEPT_OFF.format(variables="PAIRBUS_PRIMARY and PAIRBUS_SECONDARY")} {ENTRA}"""
    )(status)


def status(
    primary: Primary = None,
    secondary: Secondary = None,
    primary_name: PrimaryName = None,
    backlog_queue_count: BacklogQueueCount = 10,
    peek: Annotated[
        int,
        typer.Option(min=0, max=10_000, help="Messages to peek in each queue, for ages, destinations and reasons."),
    ] = 100,
    timeout: Annotated[
        float, duration_option("--timeout", low=0.1, high=600, help="How long each side may take to answer.")
    ] = 10,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again until stopped, and show how the counts change.")
    ] = False,
    every: Annotated[
        float | None,
        duration_option(
            "--every", low=0.1, high=86_400, help="With --watch: pause between two looks; 5s unless given."
        ),
    ] = None,
    credential: CredentialName = None,
    ca_file: CaFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; with --watch one line of it for each look.")
    ] = False,
) -> None:
    """Show both sides of a pair, clients that are failed over, what waits in the backlog queues, and the next step.

    Exits with 0 when both sides answer, clients send to the primary, nothing waits and there are no dead letters,
    otherwise with 1. Ctrl-C ends --watch, with the code of the last look. Nothing is sent, received, locked or changed.

    Both sides are asked at the same time. When one side does not answer, the command waits for --timeout and still
    shows the other side.
    A side answers when it opens a connection. Whether the primary takes messages is what clients know: those of this
    machine and user that have a control socket are shown, each entity with its state, since when, and the cause.

    Counts come from administration, which needs the Manage claim on the secondary; without it they are counts of the
    messages that were peeked. Ages, destinations and dead-letter reasons are those of the first messages of each
    queue, as many as --peek says, in at most 100 queues. Syphons are shown with their rate over the last minute when
    they run on this machine, as this user, and have a control socket. Syphons of other machines cannot be shown.
    --watch shows how the number of waiting messages changes: moved by all syphons, minus newly diverted.
    """
    # Imported when needed: the network takes a third of a second, which other commands should not pay.
    from pairbus.cli.pair.status_look import Looking

    if every is not None and not watch:
        raise typer.BadParameter("--every needs --watch")
    sides = Namespaces(credential, ca_file).pair(primary, secondary)
    name = name_of(primary_name, sides[0].authority)
    looking = Looking(*sides, name, backlog_queue_count, peek, timeout)
    if watch:
        is_quiet = run(_watch(looking.look, EVERY_S if every is None else every, as_json=as_json))
    else:
        state = run(looking.look())
        _show(state, None, as_json=as_json, indent=2)
        is_quiet = state.is_quiet
    if not is_quiet:
        raise typer.Exit(1)


async def _watch(look: Callable[[], Awaitable[Status]], every_s: float, *, as_json: bool) -> bool:
    """Look until a signal comes; return whether the last look was quiet."""
    stop = stop_event()
    stopped = asyncio.create_task(stop.wait())
    before: Status | None = None
    while not stop.is_set():
        looking = asyncio.ensure_future(look())
        await asyncio.wait((looking, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not looking.done():
            looking.cancel()
            await asyncio.wait((looking,))
            break
        now = looking.result()
        _show(now, before, as_json=as_json, indent=None)
        before = now
        await asyncio.wait((stopped,), timeout=every_s)
    stopped.cancel()
    return before is not None and before.is_quiet


def _show(now: Status, before: Status | None, *, as_json: bool, indent: int | None) -> None:
    """Print one look; looks of --watch are separated by an empty line, on a terminal each replaces the one before."""
    from pairbus.cli.pair.status_facts import COLUMNS, change_of, heading, rows, summary
    from pairbus.cli.pair.status_facts import as_json as in_json

    change = change_of(before, now)
    if as_json:
        print(json.dumps(in_json(now, change), indent=indent, ensure_ascii=False), flush=True)
        return
    if before is not None:
        typer.echo(CLEAR if sys.stdout.isatty() else "")
    for line in heading(now):
        typer.echo(line)
    if now.queues:
        print_table(COLUMNS, rows(now))
    for line in summary(now, change):
        typer.echo(line)
