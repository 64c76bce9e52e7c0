"""`pairbus spool`: list the local spool of a client, and drain one whose client is gone."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.cli.duration_options import duration_option
from pairbus.cli.namespace_options import ENTRA, KEPT_OFF, CredentialName, Namespaces
from pairbus.cli.table import print_table
from pairbus.cli.trust import CaFile
from pairbus.errors import SpoolError, SpoolOfAnotherPair
from pairbus.pairing.options import RANGES

if TYPE_CHECKING:
    from pairbus.spool.files import Standing

_app = typer.Typer(
    help="List the messages of a client's local spool, and drain one whose client is gone.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=f"{KEPT_OFF.format(variables='PAIRBUS_PRIMARY and PAIRBUS_SECONDARY')} {ENTRA}",
)

HEADS = ("spool", "pair", "path", "waiting", "bytes", "oldest", "refused", "why")
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The client's spool_dir.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands of `pairbus spool`."""
    app.add_typer(_app, name="spool")


@_app.command("list", epilog="Example: pairbus spool list /var/spool/orders --json")
def list_spool(folder: Folder, as_json: Json = False) -> None:
    """Count the waiting and the refused messages of a spool by path. Changes nothing; the client may be running."""
    from pairbus.spool.files import look

    folders = _spools(folder)
    spools = []
    for spool in folders:
        try:
            spools.append((str(spool), *look(spool)))
        except SpoolError as error:
            if len(folders) == 1:
                raise
            typer.echo(f"{error} This spool is skipped.", err=True)
    if as_json:
        shown = [{"spool": spool, "pair": pair, "paths": [*map(asdict, paths)]} for spool, pair, paths in spools]
        typer.echo(json.dumps(shown))
    else:
        print_table(HEADS, [[spool, pair or "-", *_cells(path)] for spool, pair, paths in spools for path in paths])
    if len(spools) < len(folders):
        raise typer.Exit(1)


@_app.command(
    epilog="""\b
Examples:
  pairbus spool drain /var/spool/orders --primary @primary.cs
  PAIRBUS_PRIMARY=… PAIRBUS_SECONDARY=… pairbus spool drain /var/spool/orders
  pairbus spool drain /var/spool/orders --primary @primary.cs --retry-refused
  pairbus spool drain /var/spool/orders --primary contoso.servicebus.windows.net --credential default
"""
)
def drain(
    folder: Folder,
    primary: Annotated[
        str, typer.Option(envvar="PAIRBUS_PRIMARY", metavar="CS|HOST", help="Connection string, @FILE, or host.")
    ],
    secondary: Annotated[
        str | None,
        typer.Option(
            envvar="PAIRBUS_SECONDARY",
            metavar="CS|HOST",
            help="Secondary: messages that the primary cannot take go to its backlog queues.",
        ),
    ] = None,
    primary_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="First part of the backlog paths. Default: derived from the primary's host."),
    ] = None,
    backlog_queue_count: Annotated[
        int, typer.Option(min=1, max=int(RANGES["backlog_queue_count"].most), help="Number of backlog queues.")
    ] = 10,
    credential: CredentialName = None,
    ca_file: CaFile = None,
    timeout: Annotated[
        float, duration_option("--timeout", help="Time without progress after which a path is given up.")
    ] = 30,
    retry_refused: Annotated[bool, typer.Option("--retry-refused", help="Also retry refused messages.")] = False,
    any_pair: Annotated[bool, typer.Option("--any-pair", help="Also forward messages of another pair.")] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(envvar="PAIRBUS_LEDGER", metavar="DIR", help="Write a ledger of every operation."),
    ] = None,
) -> None:
    """Adopt a spool whose client is gone, and forward its messages in order to the primary.

    Exits with 0 only when the spool is empty, otherwise with 1, and prints which messages are left and why. Refuses a
    spool whose client is running, which forwards by itself, and a spool of another pair: its pair must have the name of
    the primary, or that of --primary-name. Messages leave the spool only when a namespace has accepted them, so the
    command can be stopped and repeated.
    """
    # Imported when needed: it takes a third of a second, for which other commands should not wait.
    from pairbus.cli.pair.draining import SpoolDrain
    from pairbus.pairing.options import primary_name_of
    from pairbus.spool import Spool
    from pairbus.spool.files import look

    namespaces = Namespaces(credential, ca_file)
    primary_side = namespaces.side(primary, "--primary", "PAIRBUS_PRIMARY")
    secondary_side = None if secondary is None else namespaces.side(secondary, "--secondary", "PAIRBUS_SECONDARY")
    namespaces.check()
    name = primary_name_of(primary_side.authority) if primary_name is None else _checked(primary_name)
    drained = SpoolDrain(primary_side, secondary_side, name, backlog_queue_count, timeout, ledger)
    left: list[list[object]] = []
    spools, skipped = _spools(folder), 0
    with closing(drained):
        for path in spools:
            try:
                with closing(Spool(path)) as spool:
                    if not any_pair:
                        spool.demand(name)
                    if retry_refused:
                        spool.retry_refused()
                    reasons = drained.run(spool)
            except SpoolOfAnotherPair as error:
                skipped += 1
                typer.echo(f"{error} Drain it with --primary-name {spool.pair}, or with --any-pair.", err=True)
                continue
            except SpoolError as error:  # in use, and its owner forwards by itself; or damaged
                if len(spools) == 1:
                    raise
                skipped += 1
                typer.echo(f"{error} This spool is skipped.", err=True)
                continue
            pair, depths = look(path)
            left += [[str(path), pair or "-", *_cells(each, reasons.get(each.path.lower(), ""))] for each in depths]
    typer.echo(f"forwarded {drained.forwarded} message{'' if drained.forwarded == 1 else 's'}")
    if left:
        print_table(HEADS, left)
    if left or skipped:
        raise typer.Exit(1)


def _spools(folder: Path) -> list[Path]:
    from pairbus.spool import spools_in

    spools = spools_in(folder)
    if not spools:
        raise SpoolError(f"There is no spool in {folder}.")
    return spools


def _cells(standing: Standing, reason: str = "") -> list[Any]:
    oldest = standing.oldest_ms
    since = "-" if oldest is None else datetime.fromtimestamp(oldest / 1000, UTC).isoformat(timespec="seconds")
    why = "; ".join(text for text in (reason, *standing.reasons) if text)
    return [standing.path, standing.waiting, standing.waiting_bytes, since, standing.refused, why or "-"]


def _checked(name: str) -> str:
    from pairbus.pairing.options import checked_name

    try:
        return checked_name(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
