"""`pairbus report`: what it prints and writes, and errors of one line before anything slow is started."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pairbus.cli import main
from pairbus.cli.pipeline.report import check_rows, print_hops
from pairbus.errors import PairbusError
from pairbus.ledger.rows import Author, Row, encode
from pairbus.report.model import Damage, Hop
from tests.pages import blocks_of
from tests.report.example import empty_report

RUN_S = 240
NOON_S = 1_772_366_400.0  # 2026-03-01T12:00:00Z
QUEUE = "contoso/x-servicebus-transfer/3"


def page_lines() -> list[list[str]]:
    """Return the arguments of both commands of docs/report.md."""
    [block] = blocks_of("test_the_report_is_printed_and_written")
    return [shlex.split(line)[2:] for line in block.text.splitlines()]


def rows() -> Iterator[Row]:
    """An outage of a minute with one diverted message."""
    api = Author("orders-api", 4711, "9f3c2a1b")

    def sent(at_s: float, side: str, entity: str, cause: str, messages: int) -> Row:
        amounts = {"count": messages, "billable_operations": messages, "bytes": 1000 * messages}
        of = {"side": side, "namespace": f"{side}.servicebus.windows.net", "entity": entity, "cause": cause}
        return api.row(NOON_S + at_s, "send", outcome="ok", **of, **amounts)

    def event(at_s: float, name: str, kind: str = "event", **values: object) -> Row:
        return api.row(NOON_S + at_s, kind, event=name, entity="orders", **values)

    yield sent(1, "primary", "orders", "application", 3)
    yield event(2, "Suspected", details={"reason": "no answer within 5 s", "fails_over_in_s": 10.0})
    failed = {"after_s": 10.0, "failed_sends": 2, "reason": "no answer within 5 s", "forced": False}
    yield event(12, "FailedOver", details=failed)
    yield sent(12.5, "secondary", QUEUE, "failover", 1)
    yield event(12.5, "Diverted", "diverted", queue=QUEUE, message_id="order-17", details={"outcome_unknown": False})
    yield event(60, "Recovered", details={"after_s": 48.0, "diverted": 1, "by": "a ping"})
    yield event(80, "Moved", "moved", queue=QUEUE, message_id="order-17")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger whose last line was cut by a kill."""
    folder = tmp_path_factory.mktemp("reader") / "ledger"
    folder.mkdir()
    file = folder / "2026-03-01-orders-api-4711-9f3c2a1b-0.jsonl"
    file.write_bytes(b"".join(map(encode, rows())) + b'{"schema":1,"time":"2026-03-01T12:0')
    return folder


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a report that must end with exit code 1, and return its standard error."""
    with pytest.raises(SystemExit) as caught:
        main(["report", *map(str, arguments)])
    assert caught.value.code == 1
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def run(*arguments: object, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, which may stop its Spark."""
    return subprocess.run(
        [sys.executable, "-m", "pairbus", "report", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_ledger_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A report without it would be taken for a whole one."""
    assert fails(capsys, tmp_path / "nowhere") == f"pairbus: There is no ledger {tmp_path / 'nowhere'}\n"
    assert "There is no file of a ledger in" in fails(capsys, tmp_path)


def test_wrong_options_are_told_before_spark_is_started(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark takes seconds to start, and the report may take minutes."""
    for option in ("--out", "--json", "--parquet"):
        said = fails(capsys, ledger, option, tmp_path / "missing" / "file")
        assert (
            said
            == f"pairbus: {option} {tmp_path / 'missing' / 'file'}: the folder {tmp_path / 'missing'} does not exist\n"
        )
    assert "There is no price sheet 'cheap'" in fails(capsys, ledger, "--prices", "cheap")


def test_a_machine_without_spark_is_told_what_to_install(ledger: Path, tmp_path: Path) -> None:
    """The last line of the error says which package to install."""
    (tmp_path / "pyspark.py").write_text("raise ImportError('no pyspark here')\n", encoding="utf-8")
    done = run(ledger, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        "pairbus: pyspark is missing (no pyspark here): pip install 'pairbus[spark-local]'"
    )


@pytest.mark.spark
@pytest.mark.slow
def test_the_report_is_printed_and_written(ledger: Path, tmp_path: Path) -> None:
    """Summary on standard output, nothing else there; page, JSON and Parquet where they were wanted.

    The command is the first one of docs/report.md, with two options more.
    """
    page, numbers, tables = Path("report.html"), tmp_path / "report.json", tmp_path / "tables"
    making, _ = page_lines()
    done = run(*making, "--json", numbers, "--parquet", tables, folder=ledger.parent)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("1 outage of orders; 1 message diverted, all home; pairing added $0.00000"), (
        "a line is damaged"
    )
    assert any(line.startswith("1 damaged line left out, the first in ") for line in rest)
    assert done.stderr.splitlines() == [
        *("starting Spark on local[*]", "reading 1 file"),
        *(f"wrote {file}" for file in (page, numbers, tables)),
    ]
    text = (ledger.parent / page).read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and "1 outage of orders" in text.replace("\u00a0", " ")
    read = json.loads(numbers.read_text(encoding="utf-8"))
    assert read["availability"]["total"]["diverted"] == 1 and read["prices"]["sheet"] == "standard"
    assert (tables / "outages.parquet").is_file()


def test_hops_are_printed_with_tabs_outside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_hops("order-17", [Hop("2026-03-01T12:01:20.000Z", "moved", "orders", "orders-api", 67.5, "")])
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines()] == [
        ["time", "after", "what", "where", "client", "details"],
        ["2026-03-01T12:01:20.000Z", "1 min 8 s", "moved", "orders", "orders-api", "-"],
    ]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.deep
def test_the_way_of_a_message_is_printed_hop_by_hop(ledger: Path) -> None:
    """Tab-separated outside a terminal. The command is the second one of docs/report.md."""
    _, journey = page_lines()
    done = run(*journey, folder=ledger.parent)
    assert done.returncode == 0, done.stderr
    assert [line.split("\t")[:4] for line in done.stdout.splitlines()] == [
        ["time", "after", "what", "where"],
        ["2026-03-01T12:00:12.500Z", "0 s", "diverted", QUEUE],
        ["2026-03-01T12:01:20.000Z", "1 min 8 s", "moved", "orders"],
    ]


def test_an_id_that_no_ledger_knows_is_an_error() -> None:
    """The message was never diverted, or its client wrote no ledger: either is worth knowing."""
    with pytest.raises(PairbusError, match="No row of the ledger tells of a message with the id 'order-18'"):
        print_hops("order-18", [])


def test_a_ledger_without_a_usable_row_is_an_error() -> None:
    """An empty report would look like a period in which nothing happened."""
    report = empty_report()
    check_rows(report, ["ledger"])
    source = replace(report.source, rows=0)
    with pytest.raises(PairbusError, match=r"^a, b: there is no row to report on$"):
        check_rows(replace(report, source=source), ["a", "b"])
    damaged = replace(source, damage=(Damage("a/1.jsonl", 3, "the line is cut"),))
    with pytest.raises(PairbusError, match=r"^a: there is no row to report on; a/1\.jsonl, line 3: the line is cut$"):
        check_rows(replace(report, source=damaged), ["a"])
