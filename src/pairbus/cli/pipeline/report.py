"""`pairbus report`: an HTML page, a summary, JSON and Parquet from ledgers; or the journey of one message."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli.outputs import check_output
from pairbus.cli.pair.estimate import GEO, CountingChoice
from pairbus.cli.pipeline.spark_place import Remote, SparkPlace, spark_place
from pairbus.cli.table import print_table
from pairbus.errors import ConfigError, PairbusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from pairbus.report.model import Hop, Report

EPILOG = """\b
Examples:
  pairbus report ledger --out report.html
  pairbus report ledger/2026-03-*.jsonl --out march.html --prices premium
  pairbus report host-a/ledger host-b/ledger --json report.json --parquet tables
  pairbus report ledger --journey order-17
"""
STDERR = 2


def register(app: typer.Typer) -> None:
    """Add the command `pairbus report`."""
    app.command(name="report", epilog=EPILOG)(report)


def report(
    ledgers: Annotated[
        list[str], typer.Argument(metavar="LEDGER", help="Folders of ledgers, files, or patterns of them.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report to this file, as a self-contained HTML page.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the numbers of the report to this file, as JSON."),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the numbers of the report to this folder, as Parquet files."),
    ] = None,
    prices: Annotated[
        str, typer.Option(metavar="SHEET", help="basic, standard, premium, or a file; see docs/prices.md.")
    ] = "standard",
    counting: Annotated[
        CountingChoice, typer.Option(help="documented: settlements are free; strict: each settlement is an operation.")
    ] = CountingChoice.documented,
    operations_before: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Operations before the ledger begins, in its first month; decides the tier."
            " Default: all included ones, in every month.",
        ),
    ] = None,
    journey: Annotated[
        str | None, typer.Option(metavar="ID", help="Only print the journey of the message with this id, hop by hop.")
    ] = None,
    remote: Remote = None,
) -> None:
    """Report outages, availability and the cost of pairing, from the ledgers of any number of clients and syphons.

    Prints a summary, and writes an HTML page with plots to the file of --out. Damaged lines are named, and the others
    are used. All amounts of money are estimates. Needs Spark on this machine: pip install 'pairbus[spark-local]';
    or, with --remote, a Spark Connect server that has the ledgers: pip install 'pairbus[spark-connect]'.
    """
    # Imported when needed: other commands should not wait for it.
    from pairbus.ledger.prices import load
    from pairbus.ledger.table.listing import is_local
    from pairbus.report.passes.sources import LARGE_CONF, find_sources

    sheet, geo = load(prices), load(GEO)
    check_output("--out", out)
    check_output("--json", json_file)
    if parquet is not None and not parquet.parent.is_dir():
        raise ConfigError(f"--parquet {parquet}: the folder {parquet.parent} does not exist")
    # Before Spark is started, which takes seconds; but only Spark finds files that are not on this machine.
    where = spark_place(None, remote)
    are_here = where.remote is None and all(is_local(None, name) for name in ledgers)
    sources = find_sources(ledgers) if are_here else None
    conf = LARGE_CONF if sources is None else sources.session_conf()
    with progress() as show_progress, spark_session(show_progress, "pairbus report", where, conf) as spark:
        from pairbus.report.job import make_report
        from pairbus.report.journey import journey as hops_of

        show_progress(
            "reading" if sources is None else f"reading {sources.files} file{'s' if sources.files != 1 else ''}"
        )
        if journey is not None:
            hops = hops_of(spark, ledgers, journey)
        else:
            made = make_report(
                spark,
                ledgers,
                prices=sheet,
                geo=geo,
                counting=counting.value,
                operations_before=operations_before,
                now_s=time.time(),
            )
    if journey is not None:
        print_hops(journey, hops)
        return
    check_rows(made, ledgers)
    _show(made)
    _write(made, out, json_file, parquet)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show the current step on standard error: on a terminal in one changing line, elsewhere a line for each."""
    from rich.console import Console

    with os.fdopen(os.dup(STDERR), "w", encoding="utf-8") as out:
        console = Console(file=out, markup=False, highlight=False)
        if not console.is_terminal:
            yield lambda words: print(words, file=out, flush=True)
            return
        with console.status("") as status:
            yield lambda words: status.update(f"{words} …")


@contextmanager
def spark_session(
    show_progress: Callable[[str], None], name: str, where: SparkPlace, conf: dict[str, str]
) -> Iterator[SparkSession]:
    from pairbus.spark.session import set_log_level

    show_progress(f"starting Spark on {where}" if where.remote is None else f"using {where}")
    with _aside():
        session = where.open(name, conf)
        set_log_level(session, "ERROR")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _aside() -> Iterator[None]:
    """Keep standard error, which Java fills before its log level can be set; show it only when Java does not start."""
    with tempfile.TemporaryFile() as heard:
        kept = os.dup(STDERR)
        os.dup2(heard.fileno(), STDERR)
        try:
            yield
        except BaseException:
            heard.seek(0)
            os.write(kept, heard.read())
            raise
        finally:
            os.dup2(kept, STDERR)
            os.close(kept)


def _show(made: Report) -> None:
    from rich.console import Console

    from pairbus.report.page import summary

    Console(markup=False, highlight=False, soft_wrap=True).print(summary(made, datetime.astimezone))


def check_rows(made: Report, ledgers: Sequence[str]) -> None:
    """Raise when there is no row: the report would look like a period without events."""
    if made.source.rows:
        return
    why = ""
    if made.source.damage:
        place = made.source.damage[0]
        why = f"; {place.file}" + (f", line {place.line}" if place.line else "") + f": {place.reason}"
    raise PairbusError(f"{', '.join(ledgers)}: there is no row to report on{why}")


def _write(made: Report, out: Path | None, json_file: Path | None, parquet: Path | None) -> None:
    from pairbus.report.files import write_json, write_parquet
    from pairbus.report.page import render

    try:
        if out is not None:
            _replace(out, render(made, datetime.astimezone))
        if json_file is not None:
            write_json(made, json_file)
        if parquet is not None:
            write_parquet(made, parquet)
    except OSError as error:
        raise ConfigError(f"The report cannot be written: {error.strerror or error} ({error.filename})") from error
    for written in (out, json_file, parquet):
        if written is not None:
            typer.echo(f"wrote {written}", err=True)


def _replace(file: Path, text: str) -> None:
    """Replace the file as a whole: a browser that reloads the page gets the old one or the new one."""
    draft = file.with_name(f".{file.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)


def print_hops(message_id: str, hops: Sequence[Hop]) -> None:
    from pairbus.report.page.words import duration, plain

    if not hops:
        raise PairbusError(
            f"No row of the ledger tells of a message with the id '{plain(message_id)}': it was not diverted, or went"
            " through a client without a ledger"
        )
    rows = [
        [
            *(hop.time, plain(duration(hop.since_first_s)), plain(hop.what), plain(hop.where)),
            *(plain(hop.client), plain(hop.details) or "-"),
        ]
        for hop in hops
    ]
    print_table(("time", "after", "what", "where", "client", "details"), rows)
