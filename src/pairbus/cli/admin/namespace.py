"""`pairbus namespace`: the entities of a whole namespace, ours or Azure's."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pairbus.cli.admin import entity_options as options
from pairbus.cli.admin.connection import ConnectionString, ConnectionStringFile, connected, given_connection_string
from pairbus.cli.admin.namespace_import import IMPORT_EPILOG, import_entities
from pairbus.cli.outputs import check_output
from pairbus.cli.trust import CaFile
from pairbus.errors import ConfigError

_app = options.group("Show a namespace, export and import its entities, and reset a namespace of pairbus broker.")


def register(app: typer.Typer) -> None:
    """Add the commands `pairbus namespace …`."""
    app.add_typer(_app, name="namespace")


@_app.command(epilog="Example: pairbus namespace show --json")
@connected
def show(client: Any, as_json: options.Json = False) -> None:
    """Show the name and the tier of a namespace."""
    properties = client.get_namespace_properties()
    shown = {
        "name": properties.name,
        "tier": str(properties.messaging_sku),
        "messaging_units": properties.messaging_units,
        "alias": properties.alias or None,
        "created_at": options.time_text(properties.created_at_utc),
    }
    options.print_settings(shown, as_json)


class ExportFormat(StrEnum):
    """ExportFormat of an export."""

    EMULATOR = "emulator"
    ARM = "arm"


@_app.command(
    epilog="""\b
Examples:
  pairbus namespace export > Config.json
  pairbus namespace export --format arm --out main.json
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
    format_: Annotated[
        ExportFormat,
        typer.Option(
            "--format", metavar="|".join(ExportFormat), help="emulator: its configuration file. arm: a template."
        ),
    ] = ExportFormat.EMULATOR,
    extended: Annotated[
        bool,
        typer.Option(
            "--extended", help="Write also settings that pairbus broker reads and the emulator does not know."
        ),
    ] = False,
) -> None:
    """Write queues, topics, subscriptions and rules as a configuration file of the official emulator, or as an ARM
    template that deploys them into a namespace.

    The namespace is only read, and no key is written.
    """
    from pairbus.cli.admin.arm.export import as_template
    from pairbus.cli.admin.namespace_export import exported

    check_output("--out", out)
    document, notes = exported(client, name, extended=extended or format_ is ExportFormat.ARM)
    if format_ is ExportFormat.ARM:
        document, more = as_template(document["UserConfig"]["Namespaces"][0])
        notes += more
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out {out}: {error.strerror or error}") from None
    for note in notes:
        typer.echo(note, err=True)


class EntitiesInReset(StrEnum):
    """Choice of a reset: keep the entities, or delete them."""

    KEEP = "keep"
    DELETE = "delete"


@_app.command(
    epilog="""\b
Examples:
  pairbus namespace reset
  pairbus namespace reset --entities delete --yes
"""
)
def reset(
    *,
    connection_string: ConnectionString = None,
    connection_string_file: ConnectionStringFile = None,
    ca_file: CaFile = None,
    entities: Annotated[
        EntitiesInReset,
        typer.Option(help="keep: empty every queue, topic and subscription. delete: delete all of them."),
    ] = EntitiesInReset.KEEP,
    yes: options.Yes = False,
) -> None:
    """Empty every entity of a namespace of `pairbus broker`, or delete all of them. Asks first, unless --yes is given.

    Dead letters, scheduled and deferred messages, session states and remembered message ids go as well, and faults
    end. Clients that are connected go on. A namespace of Azure does not know this request.
    """
    from pairbus.cli.serve.switches import switch

    text = given_connection_string(connection_string, connection_string_file)
    fate = "every message" if entities is EntitiesInReset.KEEP else "every entity with its messages"
    options.confirm_deletion(f"{fate} of the namespace", yes)
    switch(text, "POST", "reset", {"entities": entities.value}, ca_file)
    typer.echo("emptied every entity" if entities is EntitiesInReset.KEEP else "deleted every entity")


_app.command("import", epilog=IMPORT_EPILOG)(import_entities)
