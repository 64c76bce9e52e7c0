"""`pairbus ledger`: ledgers as a table of Spark, and views on it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.cli.pipeline.report import progress, spark_session
from pairbus.cli.pipeline.spark_place import Remote, spark_place
from pairbus.cli.table import print_table
from pairbus.errors import ConfigError
from pairbus.ledger.rows import time_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EPILOG = """\b
Examples:
  pairbus ledger compact ledger --to ledger-table
  pairbus ledger compact host-a/ledger host-b/ledger --to /data/ledger-table
  pairbus ledger compact /mnt/ledgers --to /mnt/ledger-table --remote sc://spark.example:15002
"""
VIEW_EPILOG = """\b
Examples:
  pairbus ledger view outages ledger-table
  pairbus ledger view bill_lines ledger-table --rows 100
"""

app = typer.Typer(no_args_is_help=True, help="Keep ledgers as a table of Spark, partitioned by day.")


class LedgerFormat(StrEnum):
    parquet = "parquet"
    delta = "delta"
    iceberg = "iceberg"


class View(StrEnum):
    outages = "outages"
    moves = "moves"
    bill_lines = "bill_lines"
    operations = "operations"


def register(root: typer.Typer) -> None:
    """Add the commands `pairbus ledger …`."""
    root.add_typer(app, name="ledger")


@app.command(epilog=EPILOG)
def compact(
    ledgers: Annotated[
        list[str], typer.Argument(metavar="LEDGER", help="Folders of ledgers, files, or patterns of them.")
    ],
    to: Annotated[
        str, typer.Option(metavar="LOCATION", help="Folder or address of the table; it is created when it is missing.")
    ],
    format_: Annotated[
        LedgerFormat,
        typer.Option("--format", help="Format of the table; delta and iceberg need a session that has them."),
    ] = LedgerFormat.parquet,
    remote: Remote = None,
) -> None:
    """Add new rows of ledgers to a table; files that have not grown since the last run are not read.

    May run while clients write. A run that is killed loses no row and doubles none: run it again. Run one at a time.
    Needs Spark on this machine: pip install 'pairbus[spark-local]'; or, with --remote, a Spark Connect server that has
    the ledgers and the table: pip install 'pairbus[spark-connect]'.
    """
    with progress() as show, spark_session(show, "pairbus ledger", spark_place(None, remote), {}) as spark:
        from pairbus.ledger.table import compact_ledgers

        show("compacting")
        done = compact_ledgers(spark, ledgers, to, format=format_.value)
    typer.echo(f"{done.rows} rows of {done.files} files added to {to}; {done.unchanged} files have not grown")
    if done.damaged:
        typer.echo(
            f"{done.damaged} lines cannot be used, and are not in the table: `pairbus report` names them", err=True
        )
    for path in done.shrunk:
        typer.echo(f"{path} is shorter than the part of it that is already in the table; it was skipped", err=True)


@app.command(epilog=VIEW_EPILOG)
def view(
    name: Annotated[View, typer.Argument(metavar="VIEW", help=f"View to print: {', '.join(View)}.")],
    location: Annotated[str, typer.Argument(metavar="LOCATION", help="Table that `pairbus ledger compact` made.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows to print at most.")] = 20,
    parquet: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write all rows to this folder, as Parquet, instead of printing.")
    ] = None,
    remote: Remote = None,
) -> None:
    """Print or export a view of a ledger's table: outages, moves, bill lines or operations. Printed times are UTC."""
    with (
        progress() as show_progress,
        spark_session(show_progress, "pairbus ledger", spark_place(None, remote), {}) as spark,
    ):
        from pyspark.errors import AnalysisException

        from pairbus.ledger.table import register_views

        frame = register_views(spark, location)[name.value]
        if parquet is not None:
            try:
                frame.write.parquet(parquet)
            except AnalysisException as error:
                raise ConfigError(f"--parquet {parquet}: {str(error).splitlines()[0]}") from None
            typer.echo(f"wrote {parquet}", err=True)
            return
        table = texts_of(frame.limit(rows))
        columns = frame.columns
    print_table(tuple(columns), table)


def texts_of(frame: DataFrame) -> list[list[str]]:
    """Return the rows as texts. Timestamps are UTC with their zone: a terminal does not tell the zone of a session."""
    from pyspark.sql import functions as F

    times = {name for name, kind in frame.dtypes if kind == "timestamp"}
    rows = frame.select(*(F.unix_millis(name).alias(name) if name in times else name for name in frame.columns))

    def text_of(name: str, value: Any) -> str:
        if value is None:
            return ""
        return time_text(value / 1000) if name in times else str(value)

    return [[text_of(name, row[name]) for name in frame.columns] for row in rows.collect()]
