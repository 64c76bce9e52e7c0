"""`pairbus pair`: create the backlog queues, which needs the Manage claim, once; and check a pair that is set up."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from pairbus.cli.duration_options import duration_option
from pairbus.cli.loop import run
from pairbus.cli.namespace_options import ENTRA, KEPT_OFF, CredentialName, Namespaces, check_two
from pairbus.cli.pipeline.syphon import name_of
from pairbus.cli.trust import CaFile
from pairbus.errors import EntityError
from pairbus.pairing.options import RANGES

_app = typer.Typer(
    help="Prepare and check a pair of namespaces.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=f"{KEPT_OFF.format(variables='PAIRBUS_PRIMARY and PAIRBUS_SECONDARY')} {ENTRA}",
)


def register(app: typer.Typer) -> None:
    """Add the commands `pairbus pair …`."""
    app.add_typer(_app, name="pair")


@_app.command(
    epilog="""\b
Examples:
  pairbus pair create --primary @contoso.txt --secondary @fabrikam.txt
  PAIRBUS_PRIMARY=… PAIRBUS_SECONDARY=… pairbus pair create --backlog-queue-count 20
  pairbus pair create --primary-name contoso --secondary @fabrikam.txt --json
  pairbus pair create --primary-name contoso --secondary fabrikam.servicebus.windows.net --credential default
"""
)
def create(
    primary: Annotated[
        str | None,
        typer.Option(
            envvar="PAIRBUS_PRIMARY",
            help="Connection string of the primary, @FILE, or host; only its name is used.",
            metavar="CS|HOST",
            show_default=False,
        ),
    ] = None,
    secondary: Annotated[
        str | None,
        typer.Option(
            envvar="PAIRBUS_SECONDARY",
            help="Connection string of the secondary, @FILE, or host; with the Manage claim.",
            metavar="CS|HOST",
            show_default=False,
        ),
    ] = None,
    backlog_queue_count: Annotated[int, typer.Option(help="Number of backlog queues.", min=1)] = 10,
    primary_name: Annotated[
        str | None,
        typer.Option(
            help="First part of the backlog paths. Default: derived from the primary's host.", show_default=False
        ),
    ] = None,
    credential: CredentialName = None,
    ca_file: CaFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Create the backlog queues in the secondary; those that exist are left as they are.

    Applications can then pair with create_backlog_queues=False and need only Send (and Listen for the syphon).
    """
    # Imported when needed: the SDK takes a quarter of a second, which other commands should not pay.
    from pairbus.client.provisioning import find_or_create
    from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions, primary_name_of

    namespaces = Namespaces(credential, ca_file)
    secondary_side = namespaces.side(secondary, "--secondary", "PAIRBUS_SECONDARY")
    try:
        chosen = SendAvailabilityPairedNamespaceOptions(
            backlog_queue_count=backlog_queue_count, primary_name=primary_name
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if chosen.primary_name is None:
        primary_side = namespaces.side(primary, "--primary", "PAIRBUS_PRIMARY")
        check_two(primary_side, secondary_side)
        chosen.primary_name = primary_name_of(primary_side.authority)
    namespaces.check()
    result = asyncio.run(find_or_create(secondary_side, chosen.primary_name, chosen.backlog_queue_count))
    existing = [path for path in result.paths if path not in result.created]
    if as_json:
        shown = {"created": result.created, "found": existing, "left_out": dict(result.left_out)}
        typer.echo(json.dumps({**shown, "warnings": result.warnings}, indent=2))
    else:
        for path in result.paths:
            typer.echo(f"{'created' if path in result.created else 'found'} {path}")
        for warning in result.warnings:
            typer.echo(f"warning: {warning}", err=True)
    if result.left_out:
        raise EntityError(f"{len(result.left_out)} of {chosen.backlog_queue_count} backlog queues are missing")


@_app.command(
    epilog="""\b
Examples:
  pairbus pair check --primary @contoso.txt --secondary @fabrikam.txt
  pairbus pair check --entity orders --entity events
  pairbus pair check --primary-name contoso --backlog-queue-count 20 --json
"""
)
def check(
    primary: Annotated[
        str | None,
        typer.Option(
            envvar="PAIRBUS_PRIMARY", metavar="CS|HOST", help="Connection string of the primary, @FILE, or host."
        ),
    ] = None,
    secondary: Annotated[
        str | None,
        typer.Option(
            envvar="PAIRBUS_SECONDARY", metavar="CS|HOST", help="Connection string of the secondary, @FILE, or host."
        ),
    ] = None,
    entity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENTITY", help="Queue or topic of the primary to try. Repeat for more. Default: the first one."
        ),
    ] = None,
    backlog_queue_count: Annotated[
        int,
        typer.Option(min=1, max=int(RANGES["backlog_queue_count"].most), help="Number of backlog queues."),
    ] = 10,
    primary_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="First part of the backlog paths. Default: derived from the primary's host."),
    ] = None,
    timeout: Annotated[
        float, duration_option("--timeout", low=0.1, high=600, help="Time for the checks of each side.")
    ] = 30,
    credential: CredentialName = None,
    ca_file: CaFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check both keys, the clocks, the backlog queues and the way of a message through them.

    Each line says ok, failed with what to do, or skipped with the reason. Exits with 1 when anything failed.

    Entities of applications are left alone: a link to them is opened and closed. The command sends one message through
    each backlog queue (the first 100): it schedules the message for an hour later, so that no syphon receives it,
    peeks at it, and cancels it. If the command is killed in between, a syphon dead-letters the message after that hour.
    """
    # Imported when needed: the network takes a third of a second, which other commands should not pay.
    from pairbus.cli.pair.checking import Checking
    from pairbus.cli.pair.findings import in_json, is_well

    sides = Namespaces(credential, ca_file).pair(primary, secondary)
    name = name_of(primary_name, sides[0].authority)
    checking = Checking(*sides, name, backlog_queue_count, entity or [], timeout)
    findings = run(checking.check())
    if as_json:
        typer.echo(json.dumps(in_json(findings), indent=2, ensure_ascii=False))
    else:
        for finding in findings:
            typer.echo(str(finding))
    if not is_well(findings):
        raise typer.Exit(1)
