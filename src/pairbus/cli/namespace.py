"""`pairbus namespace`: the entities of a whole namespace, ours or Azure's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pairbus.cli import entity_options as options
from pairbus.cli.connection import connected

_app = options.group("Show a namespace, and export its entities.")


def register(app: typer.Typer) -> None:
    """Mounts `pairbus namespace`."""
    app.add_typer(_app, name="namespace")


@_app.command(epilog="Example: pairbus namespace show --json")
@connected
def show(client: Any, as_json: options.Json = False) -> None:
    """Show the name and the tier of a namespace."""
    found = client.get_namespace_properties()
    shown = {
        "name": found.name,
        "tier": str(found.messaging_sku),
        "messaging_units": found.messaging_units,
        "alias": found.alias or None,
        "created_at": options.time_text(found.created_at_utc),
    }
    options.print_settings(shown, as_json)


@_app.command(
    epilog="""\b
Examples:
  pairbus namespace export > Config.json
  pairbus namespace export --extended --out Config.json
  pairbus broker --config Config.json
"""
)
@connected
def export(
    client: Any,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write. Default: standard output.")] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the namespace in the file. Default: its own name.")
    ] = None,
    extended: Annotated[
        bool,
        typer.Option(
            "--extended", help="Write also settings that pairbus broker reads and the emulator does not know."
        ),
    ] = False,
) -> None:
    """Write queues, topics, subscriptions and rules as a configuration file of the official emulator.

    The namespace is only read, and no key is written.
    """
    from pairbus.cli.namespace_export import exported

    document, notes = exported(client, name, extended=extended)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
    for note in notes:
        typer.echo(note, err=True)
