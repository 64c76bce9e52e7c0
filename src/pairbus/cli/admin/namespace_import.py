"""`pairbus namespace import`: entities created and updated as a file describes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pairbus.cli.admin.connection import connected
from pairbus.cli.serve.broker import check_extra
from pairbus.errors import ConfigError

IMPORT_EPILOG = """\b
Examples:
  pairbus namespace import main.json --parameters dev.parameters.json --dry-run
  pairbus namespace import Config.json
"""


@connected
def import_entities(
    client: Any,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="ARM template in JSON, or configuration file of the emulator.")
    ],
    parameters: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Values of the template's parameters, in a parameters file. Repeat for more."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Namespace of the file, where the file has several.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
) -> None:
    """Create and update the queues, topics, subscriptions and rules that a file describes.

    Settings that the file does not have stay as they are, and nothing is deleted: the same import again changes
    nothing. Keys are never imported. `az bicep build` makes a template in JSON of a Bicep file.
    """
    check_extra()
    from pairbus.cli.admin.import_plan import plan_import

    wanted, notes = _read(file, parameters or [], name)
    plan = plan_import(client, wanted)
    for note in [*notes, *plan.notes]:
        typer.echo(note, err=True)
    if plan.problems:
        raise ConfigError(f"nothing was changed: {'; '.join(plan.problems)}")
    steps = [*plan.creations, *plan.changes]
    for step in steps:
        if not dry_run:
            step.run()
        typer.echo(f"would {step.sentence}" if dry_run else step.sentence)
    typer.echo(f"{len(steps)} {'changes to make' if dry_run else 'changes'}, {plan.unchanged} unchanged", err=True)


def _read(file: Path, parameters: list[Path], name: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the namespace in the emulator's format, checked, and one sentence for each part that was left out."""
    from pairbus.broker.config.file import parse_config
    from pairbus.broker.config.place import ConfigPlace, parse_json
    from pairbus.cli.admin.arm.template import read_parameters, read_template

    document = parse_json(_text(file), ConfigPlace(str(file)))
    notes: list[str] = []
    try:
        if not isinstance(document, dict) or "UserConfig" not in document:
            values: dict[str, Any] = {}
            for each in parameters:
                values |= read_parameters(parse_json(_text(each), ConfigPlace(str(each))))
            entities = read_template(document, values)
            namespaces, notes = list(entities.namespaces.values()), entities.notes
        elif parameters:
            raise ConfigError("--parameters are for ARM templates, and this is a configuration file of the emulator")
        else:
            parse_config(json.dumps(document), str(file))
            namespaces = document["UserConfig"]["Namespaces"]
    except ConfigError as error:
        raise ConfigError(str(error) if str(file) in str(error) else f"{file}: {error}") from None
    wanted = _chosen(file, namespaces, name)
    parse_config(json.dumps({"UserConfig": {"Namespaces": [{**wanted, "Name": "namespace"}]}}), str(file))
    return wanted, notes


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: cannot be read: it is not text in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None


def _chosen(file: Path, namespaces: list[dict[str, Any]], name: str | None) -> dict[str, Any]:
    known = ", ".join(each["Name"] for each in namespaces)
    if name is not None:
        namespaces = [each for each in namespaces if each["Name"].lower() == name.lower()]
    if not known:
        raise ConfigError(f"{file} describes no entity of Service Bus")
    if len(namespaces) != 1:
        raise ConfigError(f"{file} has the namespaces {known}; choose one with --name")
    return namespaces[0]
