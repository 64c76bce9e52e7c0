"""The journal: on the disk before anybody is told so, and readable whatever became of its writer."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Long, Symbol
from pairbus.errors import ConfigError
from pairbus.spark.storage.folder import FileAppender
from pairbus.spark.syphon_job.journal import MOVED, Journal, JournalRow, Location, TaskReport, encode_rows
from pairbus.syphon.decide.at_home import sequence_number_of
from tests.storage.fixtures import PLACE


def row(number: int, **changes: object) -> JournalRow:
    made = JournalRow(MOVED, "q/0", 1_000, number, f"m{number}", "orders", 20, 5, None, 7, "run-1-0-0-abcd", None)
    return made._replace(**changes)  # type: ignore[arg-type]


def journal_at(path: Path) -> Journal:
    return Journal(FileAppender(path))


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """A disk that is full, as far as this process can tell."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_has_every_field_of_its_row() -> None:
    """Lines are put together by hand for speed; JSON must read the same values, quotes and all."""
    rows = [row(1), row(2, message_id='a "b" \\ ü', reason="because", queue_created_ms=None, sequence_number=None)]
    assert [json.loads(line) for line in encode_rows(rows)] == [{"schema": 1, **each._asdict()} for each in rows]


async def test_append_returns_when_the_lines_are_in_the_storage(location: str) -> None:
    """The task completes messages afterwards, and relies on the lines."""
    place = Location(location, PLACE)
    journal = Journal(place.new_record("a", 0.0))
    for number in (1, 2):
        await journal.append(encode_rows([row(number), row(number)]))
        records = [place.storage.get(f"journal/{name}") or b"" for name in place.storage.list("journal/")]
        assert b"".join(records).count(b"\n") == 2 * number
    await journal.close()
    assert all(name.startswith("day=1970-01-01/a") for name in place.storage.list("journal/"))


async def test_those_who_wait_at_the_same_time_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch goes to many destinations, and each asks on its own: a sync for each would be slower than the sends."""
    syncs, real = [], os.fsync

    def counted(fd: int) -> None:
        syncs.append(fd)
        real(fd)

    monkeypatch.setattr(os, "fsync", counted)
    journal = journal_at(tmp_path / "a.jsonl")
    syncs.clear()
    await asyncio.gather(*[journal.append(encode_rows([row(number)])) for number in range(50)])
    await journal.close()
    assert len(syncs) <= 2
    assert (tmp_path / "a.jsonl").read_bytes().count(b"\n") == 50


async def test_after_a_failed_write_nothing_more_is_written(tmp_path: Path) -> None:
    """The file may end in half a line; a line behind it would be lost with it."""
    journal = journal_at(tmp_path / "a.jsonl")
    await journal.append(encode_rows([row(1)]))
    whole = (tmp_path / "a.jsonl").stat().st_size
    with files_of_at_most(whole + 10), pytest.raises(OSError, match="File too large"):
        await journal.append(encode_rows([row(2)]))
    with pytest.raises(OSError, match="File too large"):
        await journal.append(encode_rows([row(3)]))
    await journal.close()
    assert (tmp_path / "a.jsonl").stat().st_size == whole + 10


class RefusedRecord:
    """A record in an object store whose key is refused from some time on."""

    def append(self, data: bytes) -> None:
        raise ConfigError("the key is refused")

    def close(self) -> None:
        """Do nothing: no object is open."""


async def test_a_journal_whose_key_is_refused_fails_every_append() -> None:
    """A SAS token may run out in the middle. A pump that waited for ever would keep its messages, which are at home,
    until other syphons get them and send them again."""
    journal = Journal(RefusedRecord())
    async with asyncio.timeout(20):  # without an answer it would be for ever
        told = await asyncio.gather(
            *[journal.append(encode_rows([row(number)])) for number in range(3)], return_exceptions=True
        )
        assert [(type(error), str(error)) for error in told] == [(OSError, "the key is refused")] * 3
        with pytest.raises(OSError, match="the key is refused"):
            await journal.append(encode_rows([row(4)]))
        with pytest.raises(ConfigError, match="the key is refused"):
            await journal.close()


async def test_a_journal_without_rows_leaves_no_file(tmp_path: Path) -> None:
    """An idle syphon must not fill a folder."""
    journal = journal_at(tmp_path / "a.jsonl")
    await journal.close()
    assert not (tmp_path / "a.jsonl").exists()


def test_what_was_appended_survives_a_kill(tmp_path: Path) -> None:
    """The kill comes right after `append`, from inside: no later moment could help."""
    program = f"""
import asyncio, os, signal
from pathlib import Path
from pairbus.spark.syphon_job.journal import Journal
from pairbus.spark.storage.folder import FileAppender
async def main():
    journal = Journal(FileAppender(Path({str(tmp_path / "a.jsonl")!r})))
    await journal.append([b'{{"at_ms":1}}\\n'] * 3)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == -9
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"at_ms":1}\n' * 3


def test_a_location_that_the_driver_has_not_prepared_is_refused(tmp_path: Path) -> None:
    """A worker on another host with a folder of the same name would journal where nobody looks."""
    driver, worker = Location(tmp_path / "driver"), Location(tmp_path / "worker")
    driver.prepare("run1")
    driver.check_shared("run1")
    with pytest.raises(ConfigError, match=r"does not see the journal location .*worker"):
        worker.check_shared("run1")


def test_reports_are_read_once_each(location: str) -> None:
    """Tasks of one round end in any order, so that a name that sorts first may come last."""
    place = Location(location, PLACE)
    place.prepare("run1")
    TaskReport(1, "q/0", moved=3, problems=("a",)).write(place, "run1", "b")
    heard = {name for name, _ in place.look("run1").read_reports()}
    TaskReport(1, "q/1", moved=4).write(place, "run1", "a")
    TaskReport(2, "q/1", moved=5).write(place, "run1", "a")
    assert [report.moved for _, report in place.look("run1").read_reports(heard)] == [4, 5]
    assert [report.moved for _, report in place.look("run1").read_reports(tick=2)] == [5]
    assert not place.is_asked_to_stop("run1") and not place.look("run1").has_ended
    place.ask_to_stop("run1")
    place.end("run1")
    look = place.look("run1")
    assert place.is_asked_to_stop("run1") and look.is_asked_to_stop and look.has_ended


def test_tasks_that_have_begun_are_seen_until_forgotten(location: str) -> None:
    """The others of their round share the budget with them; notes are no reports."""
    place = Location(location, PLACE)
    place.prepare("run1")
    place.begin("run1", 1, 0)
    place.begin("run1", 11, 0)
    place.begin("run1", 11, 12)
    TaskReport(11, "q/0").write(place, "run1", "a")
    look = place.look("run1")
    assert look.begun(1).keys() == {0} and look.begun(11).keys() == {0, 12} and not look.begun(2)
    assert len(look.reports) == 1
    for name in look.begun(11).values():
        place.forget("run1", name)
    look = place.look("run1")
    assert not look.begun(11) and look.begun(1)


@pytest.mark.parametrize("number", [1, 77, 2**40 + 5, -3])
def test_sequence_numbers_are_found_in_any_form(number: int) -> None:
    """A service may write small numbers in one byte; a partitioned entity uses all eight."""
    annotations = {Symbol("x-opt-enqueued-time"): 1, Symbol("x-opt-sequence-number"): Long(number)}
    payload = Message(annotations=annotations, properties=Properties(message_id="m"), data=[b"x"]).encode()
    assert sequence_number_of(payload) == number
    wide = b"\x00Sr\xc1\x22\x02\xa3\x15x-opt-sequence-number\x81" + number.to_bytes(8, "big", signed=True)
    assert sequence_number_of(wide + b"\x00Su\xa0\x01x") == number
    assert sequence_number_of(Message(data=[b"x"]).encode()) is None
