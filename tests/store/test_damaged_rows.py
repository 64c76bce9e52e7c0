"""Rows that do not match their checksums, or are gone: announced, never served, and the rest is served on."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from pairbus.broker.store import (
    Delete,
    DropEntity,
    EraseEntity,
    Insert,
    InsertPayload,
    PutEntity,
    SetSessionState,
    StoredMessage,
    box_of,
    read_failures,
)
from pairbus.broker.store.bodies import SharedBodies
from pairbus.broker.store.committer import FOLD_COMMITS
from pairbus.broker.store.read_failures import LASTING_S, SILENCE_MAX_S, ReadFailures
from pairbus.broker.store.reader import StoreReader
from pairbus.broker.store.records import StoredRow
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.errors import StoreDamaged, StoreError
from tests.store.common import commit, filled_store, rows_of, sample_message, unreadable

BOX = box_of(1)


async def test_a_message_damaged_while_running_is_reported_and_never_returned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Body and head are covered, by load, scan and index alike."""
    store, _ = await filled_store(tmp_path, rounds=1)
    with sqlite3.connect(tmp_path / "messages.db") as vandal:
        vandal.execute("UPDATE messages SET body = zeroblob(length(body)) WHERE n = 3")
        vandal.execute("UPDATE messages SET head = zeroblob(length(head)) WHERE n = 5")
        vandal.execute("UPDATE messages SET n = 900 WHERE n = 7")
        vandal.execute("UPDATE messages SET body = NULL WHERE n = 8")
        vandal.execute("UPDATE messages SET box = ? WHERE n = 13", (BOX,))
    vandal.close()
    with caplog.at_level(logging.ERROR, "pairbus.broker.store"):
        loaded, damaged, _ = store.load(BOX, [*range(1, 14), 900])
    assert [each.seq for each in loaded] == [1, 2, 4, 6, 9, 10, 11, 12]
    assert damaged == [3, 5, 8, 13, 900]
    assert "3, 5, 8, 13, 900" in caplog.text
    assert [store.seq_of(BOX, n) for n in (4, 5, 900)] == [4, 0, 0]
    await store.close()

    store = SqliteStore(tmp_path)
    recovered = store.recover()
    assert recovered.damage == []
    assert [row.n for row in store.index() if row.box == BOX] == [1, 2, 3, 4, 6, 9, 10, 11, 12]
    [sentence] = recovered.damage
    assert "4 messages of entity 1 are damaged and not served (rows 5, 8, 13, 900)" in sentence
    await store.close()


async def test_disk_that_fails_for_a_moment_damages_no_message(tmp_path: Path) -> None:
    """A message that passes for damaged is not served until the next start, although it was acknowledged."""
    store = SqliteStore(tmp_path)
    store.recover()
    rows = [StoredMessage(1, b"own body", n=11), StoredMessage(2, b"", n=12, payload=1)]
    assert await commit(store, PutEntity(1, "{}"), InsertPayload(1, 1, b"shared"), Insert(BOX, rows)) is None
    assert await commit(store, SetSessionState(1, 20, "session", 0, b"state")) is None
    with unreadable(tmp_path):
        for read in (
            partial(store.load, BOX, [11, 12]),
            partial(store.seq_of, BOX, 11),
            partial(store.payloads_of, [11, 12]),
            partial(store.load_state, 20),
        ):
            with pytest.raises(StoreError, match="disk I/O error") as failed:
                read()
            assert not isinstance(failed.value, StoreDamaged)
    loaded, damaged, _ = store.load(BOX, [11, 12])
    assert ([each.body for each in loaded], damaged) == ([b"own body", b"shared"], [])
    assert (store.seq_of(BOX, 12), store.payloads_of([11, 12]), store.load_state(20)) == (2, [1], b"state")
    await store.close()


async def test_shared_body_that_cannot_be_read_now_is_not_damaged(tmp_path: Path) -> None:
    """The rows are read, and then the payload is not: the messages of all subscriptions would be hidden."""
    store = SqliteStore(tmp_path)
    store.recover()
    assert await commit(store, PutEntity(1, "{}"), Insert(BOX, [StoredMessage(1, b"", n=12, payload=1)])) is None
    with sqlite3.connect(tmp_path / "messages.db") as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    other.close()
    assert await commit(store, InsertPayload(1, 1, b"shared")) is None
    with unreadable(tmp_path), pytest.raises(StoreError, match="disk I/O error"):
        store.load(BOX, [12])
    assert [each.body for each in store.load(BOX, [12])[0]] == [b"shared"]
    await store.close()


class BadSectors:
    """Rows and payloads whose reads fail as on a bad disk, and a clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.numbers: set[int] = set()
        self.now = 1000.0
        monkeypatch.setattr(read_failures, "monotonic", lambda: self.now)
        rows, run = StoreReader._rows, SharedBodies._read_run

        def read_rows(reader: StoreReader, ordered: list[int], columns: str) -> Iterator[StoredRow]:
            self._check(ordered[0], ordered[-1])
            return rows(reader, ordered, columns)

        def read_run(bodies: SharedBodies, first: int, last: int, size_max: int) -> tuple[dict[int, bytes], int]:
            self._check(first, last)
            return run(bodies, first, last, size_max)

        monkeypatch.setattr(StoreReader, "_rows", read_rows)
        monkeypatch.setattr(SharedBodies, "_read_run", read_run)

    def _check(self, first: int, last: int) -> None:
        if any(first <= n <= last for n in self.numbers):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
            raise error

    def fail_for(self, seconds: float, store: SqliteStore) -> None:
        """Read once a second, and expect errors."""
        end = self.now + seconds
        while self.now < end:
            with pytest.raises(StoreError, match="disk I/O error"):
                store.load(BOX, range(11, 16))
            self.now += 1


@pytest.fixture
async def five_rows(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store with the rows 11 to 15, each with a payload of its own."""
    store = SqliteStore(tmp_path)
    store.recover()
    rows = [StoredMessage(n, b"", n=n, payload=n + 10) for n in range(11, 16)]
    payloads = [InsertPayload(n + 10, 1, b"body") for n in range(11, 16)]
    assert await commit(store, PutEntity(1, "{}"), *payloads, Insert(BOX, rows)) is None
    yield store
    await store.close()


@pytest.mark.parametrize("first", [12, 22])
async def test_rows_on_a_bad_sector_hold_up_the_others_for_minutes_only(
    five_rows: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    """Two rows, or two payloads, that can never be read must not keep intact messages from receivers for ever."""
    sectors = BadSectors(monkeypatch)
    sectors.numbers = {first, first + 1}
    sectors.fail_for(2 * LASTING_S, five_rows)
    assert "until the next start" in caplog.text
    loaded, damaged, _ = five_rows.load(BOX, range(11, 16))
    assert ([each.n for each in loaded], damaged) == ([11, 14, 15], [12, 13])
    sectors.numbers = set()
    assert len(five_rows.load(BOX, range(11, 16))[0]) == 5


@pytest.mark.parametrize("between", ["a success", "silence"])
async def test_read_errors_with_a_pause_between_them_do_not_last(
    five_rows: SqliteStore, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    """Two passing errors that are far apart must not hide a message."""
    sectors = BadSectors(monkeypatch)
    sectors.numbers = {12}
    sectors.fail_for(LASTING_S - 1, five_rows)
    if between == "a success":
        sectors.numbers = set()
        assert len(five_rows.load(BOX, range(11, 16))[0]) == 5
        sectors.numbers = {12}
    else:
        sectors.now += SILENCE_MAX_S + 1
    sectors.fail_for(LASTING_S - 1, five_rows)


async def test_disk_that_is_away_for_long_damages_no_message(
    five_rows: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are given up only where another one can be read."""
    sectors = BadSectors(monkeypatch)
    sectors.numbers = set(range(11, 16))
    monkeypatch.setattr(ReadFailures, "_can_read_newest", lambda failures: False)
    sectors.fail_for(3 * LASTING_S, five_rows)
    sectors.numbers = set()
    assert len(five_rows.load(BOX, range(11, 16))[0]) == 5


async def test_damage_of_a_payload_is_damage_of_every_message_that_shares_it(tmp_path: Path) -> None:
    """The messages that share it are not served, with another body or an empty one; other messages are served."""
    store = SqliteStore(tmp_path)
    store.recover()
    shared = [StoredMessage(seq, b"", n=seq + 10, payload=1 + seq % 2) for seq in range(4)]
    payloads = InsertPayload(1, 1, b"even" * 9), InsertPayload(2, 1, b"odd" * 9)
    assert await commit(store, PutEntity(1, "{}"), *payloads, Insert(BOX, shared)) is None
    with sqlite3.connect(tmp_path / "messages.db") as vandal:
        vandal.execute("UPDATE payloads SET body = zeroblob(length(body)) WHERE id = 1")
    vandal.close()
    loaded, damaged, _ = store.load(BOX, range(10, 14))
    assert ([(each.n, each.body) for each in loaded], damaged) == ([(11, b"odd" * 9), (13, b"odd" * 9)], [10, 12])
    await store.close()


async def test_a_payload_that_no_message_shares_is_swept_at_the_start(tmp_path: Path) -> None:
    """The broker never writes such a payload; if one is there all the same, it must not stay for ever."""
    store = SqliteStore(tmp_path)
    store.recover()
    payloads = InsertPayload(1, 1, b"shared"), InsertPayload(2, 1, b"orphan")
    await commit(store, PutEntity(1, "{}"), *payloads, Insert(BOX, [StoredMessage(1, b"", n=3, payload=1)]))
    await store.close()
    store = SqliteStore(tmp_path)
    store.recover()
    assert rows_of(store, BOX) == [3]
    await commit(store, PutEntity(2, "{}"))
    await store.close()
    store = SqliteStore(tmp_path)
    assert store.recover().damage == []
    assert [row[0] for row in store.payloads()] == [1]
    await store.close()


async def test_messages_of_an_entity_that_is_not_there_are_announced_and_kept(tmp_path: Path) -> None:
    """A row of the table of entities may be lost without a trace; the messages are not garbage for that."""
    store, _ = await filled_store(tmp_path, rounds=1)
    await store.close()
    with sqlite3.connect(tmp_path / "messages.db") as vandal:
        vandal.execute("DELETE FROM entities WHERE id = 1")
    vandal.close()
    store = SqliteStore(tmp_path)
    recovered = store.recover()
    assert (len(list(store.index())), recovered.dropped) == (48, [])
    assert "24 messages belong to entities that are not there" in recovered.damage[0]
    await store.close()


async def test_counters_are_right_before_and_after_they_are_folded(tmp_path: Path) -> None:
    """Each commit writes the counters that it changed into one row; now and again the rows are put together."""
    store = SqliteStore(tmp_path)
    store.recover()
    await commit(store, *[PutEntity(entity_id, "{}") for entity_id in range(1, 60)])
    commits = FOLD_COMMITS + 20
    for n in range(1, commits):
        assert await commit(store, Insert(box_of(n % 50 + 1), [StoredMessage(n, b"x", n=n)])) is None
    await commit(store, Delete(box_of(2), [1]), DropEntity(59))
    await commit(store, EraseEntity(59))
    await store.close()
    with sqlite3.connect(tmp_path / "messages.db") as file:
        assert file.execute("SELECT count(*) FROM journal").fetchone()[0] < FOLD_COMMITS
    file.close()
    store = SqliteStore(tmp_path)
    recovered = store.recover()
    assert len(list(store.index())) == commits - 2
    assert recovered.damage == []
    last = {each.entity_id: each.last_seq for each in recovered.entities}
    assert last == {n: max((each for each in range(1, commits) if each % 50 + 1 == n), default=0) for n in range(1, 59)}
    await store.close()


async def test_a_row_that_vanished_without_a_trace_is_missed(tmp_path: Path) -> None:
    """A lost page write can leave a database that is valid and incomplete; the counters tell."""
    store, _ = await filled_store(tmp_path, rounds=1)
    await store.close()
    with sqlite3.connect(tmp_path / "messages.db") as vandal:
        vandal.execute("DELETE FROM messages WHERE n = 3")
    vandal.close()
    store = SqliteStore(tmp_path)
    recovered = store.recover()
    assert len(rows_of(store, BOX)) == 11
    assert recovered.damage == [f"{tmp_path}/messages.db: entity 1 should hold 24 messages, 23 were found."]
    await store.close()


async def test_damaged_descriptions_counters_and_ids_are_announced(tmp_path: Path) -> None:
    """The small tables carry checksums too; intact rows are still served."""
    store, _ = await filled_store(tmp_path, rounds=1)
    await store.close()
    with sqlite3.connect(tmp_path / "messages.db") as vandal:
        vandal.execute("UPDATE entities SET description = '{}' WHERE id = 2")
        vandal.execute("UPDATE journal SET last_n = 7")
        vandal.execute("UPDATE remembered SET until_ms = 99999 WHERE message_id = 'id 24'")
    vandal.close()
    store = SqliteStore(tmp_path)
    recovered = store.recover()
    assert [(each.entity_id, each.last_seq) for each in recovered.entities] == [(1, 24)]
    assert recovered.last_entity_id == 2
    assert store.number() == 49
    assert sorted(store.remembered(1)) == [("id 12", 12), ("id 36", 36), ("id 48", 48)]
    told = "\n".join(recovered.damage)
    for part in ("number of commits", "counters of entity 1", "description of entity 2", "1 message ids"):
        assert part in told
    assert await commit(store, Insert(BOX, [sample_message(50)])) is None
    await store.close()
    store = SqliteStore(tmp_path)
    assert [each.last_seq for each in store.recover().entities] == [50]
    await store.close()
