"""`pairbus store`: backup and rescue of the files of a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pairbus.cli.serve.broker import check_extra
from pairbus.cli.serve.store_backup import BACKUP_EPILOG, backup
from pairbus.cli.table import print_table
from pairbus.errors import StoreError

_app = typer.Typer(
    help="Back up the messages of a broker, and rescue those of a damaged store.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Add the commands `pairbus store …`."""
    app.add_typer(_app, name="store")


@_app.command(
    epilog="""\b
Examples:
  pairbus store salvage pairbus-data/contoso --to rescued/contoso
  pairbus broker --namespace contoso=5672 --data rescued
"""
)
def salvage(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of one namespace, such as pairbus-data/contoso; it is left as it is."
        ),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the copy goes; must be new or empty.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy every intact message of a damaged store into a new one.

    Prints for each queue how many messages were copied and how many are lost ('?': the store no longer says).
    Nothing damaged is copied. No broker may be running on either folder.
    """
    check_extra()
    from pairbus.broker.store.salvage import salvage as copy_intact

    _check(folder)
    try:
        report = copy_intact(folder, to)
    except OSError as error:
        raise StoreError(f"The salvage stopped: {error.strerror or error} ({error.filename or to}).") from error
    queues = [
        {"queue": _path_of(each.description, each.entity_id), "copied": each.copied, "lost": each.lost}
        for each in report.entities
    ]
    if as_json:
        typer.echo(json.dumps({"queues": queues, "notes": report.notes}, indent=2))
        return
    rows = [[row["queue"], row["copied"], "?" if row["lost"] is None else row["lost"]] for row in queues]
    print_table(("queue", "copied", "lost"), rows)
    for note in report.notes:
        typer.echo(note, err=True)


def _check(folder: Path) -> None:
    """Check the folder. The likely mistake is to name the data folder, which holds one folder for each namespace."""
    if not folder.is_dir():
        raise StoreError(f"There is no folder {folder}.")
    inside = sorted(path.parent.name for path in folder.glob("*/messages.db"))
    if inside and not (folder / "messages.db").exists():
        raise StoreError(
            f"{folder} holds the namespaces {', '.join(inside)}; salvage one at a time, for example"
            f" `pairbus store salvage {folder / inside[0]} --to NEWFOLDER/{inside[0]}`."
        )


def _path_of(description: str, entity_id: int) -> str:
    from pairbus.broker.description import description_from_json

    try:
        return description_from_json(description).path
    except (ValueError, TypeError):  # kept as found, although it is damaged
        return f"entity {entity_id}"


_app.command(epilog=BACKUP_EPILOG)(backup)
