"""Options of `pairbus syphon` and `pairbus redrive` for Spark."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from pairbus.cli.namespace_options import connection_string
from pairbus.cli.pipeline.spark_place import MASTER, SparkPlace

if TYPE_CHECKING:
    from pairbus.cli.namespace_options import Namespaces
    from pairbus.cli.pipeline.spark_server import ServerNamespaces
    from pairbus.cli.pipeline.spark_start import SparkStart
    from pairbus.syphon import SyphonSettings


class EngineName(StrEnum):
    local = "local"
    spark = "spark"


WhichEngine = Annotated[EngineName, typer.Option(help="local: in this process; spark: as a Spark job.")]
Journal = Annotated[
    str | None,
    typer.Option(
        metavar="LOCATION",
        help="With --engine spark: folder of the journal, shared by all hosts, or a path in Azure Blob or ADLS Gen2."
        " Not needed on one machine.",
    ),
]
StorageCredential = Annotated[
    str | None,
    typer.Option(
        metavar="env:NAME|@FILE|default|MODULE:CALLABLE",
        help="Credential for a journal in Azure: env:NAME or @FILE with a connection string or a SAS token, default,"
        " MODULE:CALLABLE. Default: env:PAIRBUS_STORAGE if that variable is set, otherwise default.",
    ),
]
Tables = Annotated[
    str | None,
    typer.Option(metavar="LOCATION", help="Where Spark writes the table of moves. Default: in the journal's folder."),
]
Checkpoint = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Checkpoint of Spark. Default: in the journal's folder.")
]
Tasks = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With --engine spark: number of tasks that run at once and share the budget."
        " Default: the number that Spark reports.",
    ),
]

Given = tuple[str | None, str]
"A connection string or host as it was given, and the variable that could have given it."


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Values of the options."""

    engine: EngineName
    where: SparkPlace
    journal: str | None
    storage_credential: str | None
    tables: str | None
    checkpoint: Path | None
    tasks: int | None
    ledger: Path | None
    ca_file: Path | None
    credential: str | None
    "Name of a credential, when namespaces are given by their hosts."

    def check(self) -> None:
        """Refuse options of Spark that would have no effect."""
        of_spark = (self.journal, self.storage_credential, self.tables, self.checkpoint, self.tasks)
        if self.engine is not EngineName.spark and any(value is not None for value in of_spark):
            raise typer.BadParameter(
                "--journal, --storage-credential, --tables, --checkpoint and --tasks need --engine spark"
            )

    def start(
        self, sides: tuple[Given, Given], names: tuple[str, ...], settings: SyphonSettings, namespaces: Namespaces
    ) -> SparkStart:
        """Return the settings of Spark's start. `sides`: primary, secondary. `names`: names of the default journal."""
        from pairbus.cli.pipeline.spark_start import SparkStart

        journal = self.journal or str(default_journal_on(self.where, names))
        server = None if self.where.remote is None else cast("ServerNamespaces", namespaces)
        return SparkStart(self, server, settings, journal, *self._sides(sides))

    def _sides(self, sides: tuple[Given, Given]) -> tuple[str, str]:
        """Return where Spark finds the secrets of the two sides, or their hosts."""
        from pairbus.cli.pipeline.spark_start import place_of

        if self.where.remote is not None:
            primary, secondary = (place or "" for place, _ in sides)
            return primary, secondary
        texts = [connection_string(place, variable, variable) for place, variable in sides]
        if self.credential is not None:
            if any("=" in text for text in texts):
                raise typer.BadParameter("--engine spark with --credential takes hosts only, no connection strings")
            primary, secondary = texts
        else:
            primary, secondary = (
                place_of(place, text, variable, self.where)
                for (place, variable), text in zip(sides, texts, strict=True)
            )
        return primary, secondary


def default_journal_on(where: SparkPlace, names: tuple[str, ...]) -> Path:
    """Return the journal's folder on one machine, and say where it is."""
    from pairbus.cli.standard import say
    from pairbus.spark.defaults import is_local_master
    from pairbus.spark.syphon_job.arguments import default_journal

    if where.remote is not None or not is_local_master(where.master or MASTER):
        raise typer.BadParameter(
            f"--engine spark on {where} needs --journal DIR, a folder that all hosts of Spark share, or a path in"
            " Azure Blob or ADLS Gen2"
        )
    journal = default_journal(*names)
    say(f"the journal is in {journal}")
    return journal
