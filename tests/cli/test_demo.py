"""`pairbus demo`: the story is told, the numbers are true, and a broker that loses messages is found out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pairbus.cli import demo, main
from pairbus.cli.child_broker import ChildBroker
from pairbus.cli.demo import Book, Verdict
from pairbus.errors import PairbusError

COUNTS = ("sent", "accepted", "unknown", "found", "lost", "duplicated", "altered")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["demo", *arguments])
    return int(caught.value.code or 0)


@pytest.mark.slow
def test_every_accepted_message_is_there_after_the_kill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole story with a real process, in plain lines; the JSON file has the numbers of the table."""
    file = tmp_path / "demo.json"
    assert run("--messages", "300", "--seed", "7", "--json", str(file)) == 0
    lines = capsys.readouterr().out.splitlines()
    chapters = ("serves", "senders", "kill -9", "ready", "all sent")
    assert all(word in line for word, line in zip(chapters, lines[: len(chapters)], strict=True)), lines
    numbers = json.loads(file.read_text())
    assert lines[-3].split() == list(COUNTS)
    assert lines[-2].split() == [str(numbers[name]) for name in COUNTS]
    assert numbers["sent"] == 300 and numbers["seed"] == 7
    assert numbers["lost"] == numbers["duplicated"] == numbers["altered"] == 0
    assert numbers["accepted"] <= numbers["found"] <= numbers["accepted"] + numbers["unknown"] == 300
    assert 120 <= numbers["killed_after"] <= 180


@pytest.mark.slow
def test_a_broker_that_loses_messages_is_found_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three stored messages are removed behind its back while it is dead: exit code 1, and the count says 3."""

    class RobbedBroker(ChildBroker):
        async def kill(self) -> None:
            await super().kill()
            with sqlite3.connect(self._data / "contoso" / "messages.db") as database:
                database.execute("DELETE FROM box_2 WHERE seq <= 3")
            database.close()

    monkeypatch.setattr(demo, "ChildBroker", RobbedBroker)
    assert run("--messages", "200") == 1
    out = capsys.readouterr().out.splitlines()
    assert dict(zip(out[-3].split(), out[-2].split(), strict=True))["lost"] == "3"
    assert "broke its promise" in out[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_stopping_it_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Ctrl-C or SIGTERM in the middle: no process, no folder, no traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pairbus", "demo", "--messages", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None and process.stderr is not None
    with process:
        try:
            broker_pid = int(process.stdout.readline().split("broker ")[1].split()[0])
            assert "senders" in process.stdout.readline()
            process.send_signal(number)
            assert process.wait(20) == code
        finally:
            process.kill()
        assert "Traceback" not in process.stderr.read()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(broker_pid, 0)


def test_a_folder_that_is_not_there_is_told_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a minute of work and then no file would be rude."""
    assert run("--json", "/nowhere/demo.json") == 1
    assert capsys.readouterr().err == "pairbus: --json /nowhere/demo.json: the folder /nowhere does not exist\n"


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Its own last words are in the error, not only an exit code."""

    async def start() -> None:
        async with ChildBroker(["not a name"], tmp_path / "data", tmp_path / "stderr"):
            pass

    with pytest.raises(PairbusError, match="NAME=PORT is needed"):
        asyncio.run(start())


def test_the_book_tells_lost_duplicated_and_altered_apart() -> None:
    """One message of each fate; none is counted twice."""

    async def story() -> Verdict:
        book = Book(seed=1)
        sent = {name: book.new_message("contoso", name) for name in ("good", "gone", "twice", "changed", "silent")}
        for name in ("good", "gone", "twice", "changed"):
            await book.accepted("contoso", name)
        for name in ("good", "twice", "twice", "silent"):
            book.found("contoso", sent[name])
        changed = sent["changed"]
        book.found("contoso", SimpleNamespace(message_id="changed", body=[b"x"], application_properties=None))
        book.found("fabrikam", changed)
        return book.verdict()

    verdict = asyncio.run(story())
    assert verdict == Verdict(sent=5, accepted=4, unknown=1, found=6, lost=1, duplicated=1, altered=2)
    assert not verdict.is_good
