"""`pairbus demo`: the story is told, the numbers are true, and a pair that loses messages is found out."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.amqp.message import Message
from pairbus.cli import main
from pairbus.cli.demo import command as demo
from pairbus.cli.demo import pair as demo_pair
from pairbus.cli.demo.book import Book, DemoVerdict
from pairbus.cli.demo.pair import INVOICES, ORDERS, SHIPMENTS
from pairbus.cli.serve.children import ChildBroker
from pairbus.errors import PairbusError
from pairbus.sdk.encoding import encode
from tests.pages import blocks, blocks_of
from tests.spark.processes import command_of, descendants

CONTRACT = [
    *("sent", "accepted", "in_primary", "lost", "duplicated", "altered"),
    *("diverted", "moved", "failover_s", "drain_s", "cost", "report"),
]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["demo", *arguments])
    return int(caught.value.code or 0)


def without_numbers(line: str) -> str:
    return re.sub(r" +", " ", re.sub(r"\d+(?:\.\d+)?", "N", line)).strip()


def readme_story() -> list[str]:
    [shown] = [block.text for block in blocks_of("test_every_message_comes_home")]
    assert "0 lost, 0 duplicated, 0 altered" in shown
    return [without_numbers(line) for line in shown.splitlines()]


def table(out: str) -> dict[str, str]:
    return {words[0]: words[1] for words in map(str.split, out.splitlines()) if words and words[0] in CONTRACT}


@pytest.mark.slow
def test_every_message_comes_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo runs real processes and prints the lines of the README; the JSON file has the numbers of the table."""
    file = tmp_path / "demo.json"
    assert run("--messages", "120", "--seed", "7", "--engine", "local", "--json", str(file)) == 0
    out = capsys.readouterr().out
    told = [line.replace("spark", "local") for line in readme_story() if not line.startswith("N s report")]
    assert [without_numbers(line) for line in out.splitlines()][: len(told)] == told

    assert out.splitlines()[-1] == blocks("docs/quickstart.md", "text")[0].splitlines()[-1]
    numbers = json.loads(file.read_text())
    assert list(numbers) == CONTRACT
    assert numbers["sent"] == numbers["accepted"] == numbers["in_primary"] == 120
    assert numbers["lost"] == numbers["duplicated"] == numbers["altered"] == 0
    assert 48 <= numbers["diverted"] == numbers["moved"] <= 96, (
        "messages sent in the outage, and sends that the kill interrupted"
    )
    assert numbers["failover_s"] >= 1 and numbers["drain_s"] > 0
    operations, billable = numbers["cost"]["operations"], numbers["cost"]["billable_operations"]
    assert billable["failover"] >= numbers["diverted"], "each diverted message is a send to the secondary"
    assert billable["syphon"] >= 3 * numbers["moved"], "each moved message is received, sent and completed"
    assert operations["application"] >= 120 - numbers["diverted"], "each other message is a send to the primary"
    assert numbers["report"] is None
    plain = {name: str(numbers[name]) for name in CONTRACT[:-2]}
    assert table(out) == plain | {"cost": str(sum(billable.values())), "report": "-"}


@pytest.mark.slow
def test_a_pair_that_loses_messages_is_found_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three stored messages are removed behind its back while it is dead: exit code 1, and the count says 3."""

    class RobbedBroker(ChildBroker):
        async def kill(self) -> None:
            await super().kill()
            with sqlite3.connect(self._data / "contoso" / "messages.db") as database:
                gone = database.execute(
                    "DELETE FROM messages WHERE n IN (SELECT min(n) FROM messages GROUP BY box LIMIT 3)"
                ).rowcount
            database.close()
            assert gone == 3

    monkeypatch.setattr(demo_pair, "ChildBroker", RobbedBroker)
    assert run("--messages", "120", "--engine", "local") == 1
    out = capsys.readouterr().out
    assert table(out)["lost"] == "3", out
    assert "broke its promise" in out.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.deep
def test_spark_moves_them_home(tmp_path: Path) -> None:
    """The story of the README, with Spark where it is installed, and a report at its end. In a process of its own, as
    a process has one Java, and this one may have others of its own to run."""
    file, page = tmp_path / "demo.json", tmp_path / "demo.html"
    words = ["demo", "--messages", "60", "--json", str(file), "--report", str(page)]
    command = [sys.executable, "-m", "pairbus", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    numbers = json.loads(file.read_text())
    assert numbers["lost"] == numbers["duplicated"] == numbers["altered"] == 0
    assert numbers["moved"] == numbers["diverted"] > 0
    assert numbers["cost"]["billable_operations"]["syphon"] >= 3 * numbers["moved"]
    assert numbers["report"] == str(page)
    assert f"{numbers['diverted']} messages" in page.read_text() and "<svg" in page.read_text()
    words = [line.partition(":")[0] for line in readme_story()]
    assert [without_numbers(line).partition(":")[0] for line in done.stdout.splitlines()][: len(words)] == words


ON_SPARK = [pytest.mark.spark, pytest.mark.deep]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "engine"),
    [
        (signal.SIGINT, 130, "local"),
        (signal.SIGTERM, 1, "local"),
        pytest.param(signal.SIGINT, 130, "spark", marks=ON_SPARK),
    ],
)
def test_stopping_it_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, code: int, engine: str) -> None:
    """Ctrl-C or SIGTERM in the middle of sending, or of a Spark job: no process, no folder, no traceback."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pairbus",
            "demo",
            "--messages",
            "60" if engine == "spark" else "1000000",
            "--engine",
            engine,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        # A background job of a shell inherits that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - this process has no threads
    )
    assert process.stdout is not None and process.stderr is not None
    with process:
        try:
            brokers = [int(pid) for pid in re.findall(r"process (\d+)", process.stdout.readline())]
            assert "sending" in process.stdout.readline()
            while engine == "spark" and not any("SparkSubmit" in command_of(pid) for pid in descendants(process.pid)):
                assert process.poll() is None
                time.sleep(0.1)  # until Java runs
            others = descendants(process.pid)
            process.send_signal(number)
            assert process.wait(60) == code
        finally:
            process.kill()
        assert "Traceback" not in process.stderr.read()
    assert list(tmp_path.iterdir()) == []
    assert len(brokers) == 2 and brokers[1] in others  # the primary may have been killed and started again
    give_up_s = time.monotonic() + 30
    while left := [pid for pid in others if command_of(pid)]:
        assert time.monotonic() < give_up_s, [command_of(pid) for pid in left]
        time.sleep(0.1)  # Spark's workers end by themselves when their Java is gone


def test_a_folder_that_is_not_there_is_told_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a minute of work and then no file would be rude."""
    for option in ("--json", "--report"):
        assert run(option, "/nowhere/demo") == 1
        assert capsys.readouterr().err == f"pairbus: {option} /nowhere/demo: the folder /nowhere does not exist\n"


def test_a_file_that_cannot_be_written_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path is a folder, or in a folder without write permission; an earlier report may lie there."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    Path("pairbus-demo.html").touch()
    for option in ("--json", "--report"):
        assert run(option, str(tmp_path)) == 1
        assert capsys.readouterr().err == f"pairbus: {option} {tmp_path}: that is a folder\n"
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    assert run("--json", str(tmp_path / "demo.json")) == 1
    assert capsys.readouterr().err == f"pairbus: --json {tmp_path / 'demo.json'}: it may not be written\n"


def test_without_spark_the_engine_spark_is_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error comes before an outage is staged whose backlog could not be brought home."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert run("--engine", "spark") == 1
    assert "pip install 'pairbus[spark-local]'" in capsys.readouterr().err


@pytest.mark.parametrize("report", ["demo.html", None])
def test_without_a_report_the_demo_says_what_one_needs(report: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """The hint stands in the row of the report; with a report there is no hint."""
    cost: dict[str, dict[str, int]] = {"operations": {}, "billable_operations": {}}
    numbers = Book(1).counts() | {"diverted": 0, "moved": 0, "failover_s": 0.0, "drain_s": 0.0}
    demo.Stage().show(DemoVerdict(**numbers, cost=cost, report=report))
    [row] = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("report")]
    hint = "-  the report of the outage needs --engine spark: pip install 'pairbus[spark-local]'"
    assert row.endswith("demo.html  HTML report" if report else hint)


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The broker's own last words are in the error, not only an exit code."""

    async def start() -> None:
        async with ChildBroker(["not a name"], tmp_path / "data", tmp_path / "stderr"):
            pass

    with pytest.raises(PairbusError, match="NAME=PORT is needed"):
        asyncio.run(start())


def test_the_book_tells_lost_duplicated_and_altered_apart() -> None:
    """The book has one message of each fate; none is counted twice, and one without an answer is not lost."""
    book = Book(1)
    fates = ("good", "gone", "twice", "changed", "silent")
    sent = {name: book.new_message(ORDERS, name, number) for number, name in enumerate(fates)}
    for name in ("good", "gone", "twice", "changed"):
        book.accepted.add(str(sent[name].message_id))
    assert len(book.accepted) == 4 and len(book.sent) - len(book.accepted) == 1
    sent["changed"].application_properties = {"x-ms-path": "orders"}
    for name in ("good", "twice", "twice", "changed"):
        book.found("orders", encode(sent[name]))
    book.found("payments", encode(sent["good"]))
    book.found("orders", encode(ServiceBusMessage("a stranger", message_id="unknown")))
    counts = book.counts()
    assert (counts["sent"], counts["accepted"], counts["in_primary"]) == (5, 4, 3)
    assert (counts["lost"], counts["duplicated"], counts["altered"]) == (1, 1, 3)


def test_a_message_that_one_subscription_lacks_is_lost() -> None:
    """A topic has kept its promise when all its subscriptions have the message; sessions belong to the content."""
    book = Book(1)
    invoices = [book.new_message(INVOICES, "shop", number) for number in (0, 1)]
    shipment = book.new_message(SHIPMENTS, "shop", 2)
    for message in invoices:
        book.accepted.add(str(message.message_id))
        book.found("invoices/Subscriptions/audit", encode(message))
    book.found("invoices/Subscriptions/archive", encode(invoices[0]))
    shipment.session_id = "another"
    book.found("shipments", encode(shipment))
    counts = book.counts()
    assert (counts["in_primary"], counts["lost"], counts["duplicated"], counts["altered"]) == (2, 1, 0, 1)


def test_a_repeated_send_and_a_ping_are_no_alterations() -> None:
    """The SDK writes the time of a send into a message with a time to live; pings are messages of the client."""
    book = Book(1)
    message = book.new_message(ORDERS, "shop", 0)
    again = Message.decode(encode(message))
    assert again.properties is not None and again.properties.creation_time is not None
    again.properties = replace(again.properties, creation_time=again.properties.creation_time + 1000)
    book.found("orders", again.encode())
    ping = ServiceBusMessage(b"", message_id="ping", content_type="application/vnd.ms-servicebus-ping")
    book.found("orders", encode(ping))
    assert (book.counts()["in_primary"], book.counts()["altered"]) == (1, 0)


def test_the_same_seed_makes_the_same_messages() -> None:
    """The seed is enough to repeat a run that went wrong."""

    def content(seed: int) -> list[object]:
        message = Book(seed).new_message(ORDERS, "shop", 3)
        return [b"".join(message.body), message.message_id, message.time_to_live, message.application_properties]

    assert content(7) == content(7) != content(8)
