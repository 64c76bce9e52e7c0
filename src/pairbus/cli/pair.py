"""`pairbus pair`: the part of pairing that needs the Manage claim, done once, so that applications need it no more."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from pairbus.cli.secrets import ENTRA, KEPT_OFF, CredentialName, Namespaces
from pairbus.cli.trust import CaFile
from pairbus.errors import ConfigError, EntityError

_app = typer.Typer(
    help="Prepare a pair of namespaces.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=f"{KEPT_OFF.format(variables='PAIRBUS_PRIMARY and PAIRBUS_SECONDARY')} {ENTRA}",
)


def register(app: typer.Typer) -> None:
    """Mounts `pairbus pair`."""
    app.add_typer(_app, name="pair")


@_app.callback()
def _group() -> None:
    """A group of its own, also with one command."""


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
    backlog_queue_count: Annotated[int, typer.Option(help="How many backlog queues there shall be.", min=1)] = 10,
    primary_name: Annotated[
        str | None,
        typer.Option(
            help="First part of their paths; derived from the primary's host when not given.", show_default=False
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
    there = namespaces.side(secondary, "--secondary", "PAIRBUS_SECONDARY")
    try:
        chosen = SendAvailabilityPairedNamespaceOptions(
            backlog_queue_count=backlog_queue_count, primary_name=primary_name
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if chosen.primary_name is None:
        home = namespaces.side(primary, "--primary", "PAIRBUS_PRIMARY")
        if home.authority.lower() == there.authority.lower():
            raise ConfigError(f"primary and secondary are the same namespace, {home.name}: a pair needs two")
        chosen.primary_name = primary_name_of(home.authority)
    namespaces.check()
    result = asyncio.run(find_or_create(there, chosen.primary_name, chosen.backlog_queue_count))
    found = [path for path in result.paths if path not in result.created]
    if as_json:
        shown = {"created": result.created, "found": found, "left_out": dict(result.left_out)}
        typer.echo(json.dumps({**shown, "warnings": result.warnings}, indent=2))
    else:
        for path in result.paths:
            typer.echo(f"{'created' if path in result.created else 'found'} {path}")
        for warning in result.warnings:
            typer.echo(f"warning: {warning}", err=True)
    if result.left_out:
        raise EntityError(f"{len(result.left_out)} of {chosen.backlog_queue_count} backlog queues are missing")
