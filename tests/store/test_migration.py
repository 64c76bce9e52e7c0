"""A store of release 0.3 is migrated when it is opened. The sample was written by that release and killed: its last
commits are in the log alone. It has queues with active, deferred, scheduled, abandoned and dead-lettered messages,
remembered message ids, and a queue that was deleted."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import tarfile
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pairbus.broker import Broker, NamespaceOptions
from pairbus.broker.entities.receivable import Outcome
from pairbus.broker.store import ACTIVE, Insert, StoredMessage, box_of, dead_box_of
from pairbus.broker.store import migration as migration_module
from pairbus.broker.store.committer import Committer
from pairbus.broker.store.salvage import salvage
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.errors import StoreDamaged, StoreError, StoreFull
from tests.broker.locking import lock_next
from tests.store.common import commit

SAMPLE = Path(__file__).parent / "samples" / "release-0.3.tar.xz"
FILES = ("messages.db", "messages.db-wal", "commits")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return unpack(tmp_path / "data" / "contoso")


def unpack(to: Path) -> Path:
    to.mkdir(parents=True)
    with tarfile.open(SAMPLE) as tar:
        tar.extractall(to, filter="data")
    return to


def expected(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return found


def row_of(message: StoredMessage) -> list[object]:
    return [
        message.seq,
        message.state,
        message.message_id,
        message.delivery_count,
        message.enqueued_ms,
        message.expires_ms,
        message.scheduled_ms,
        message.ttl_ms,
        message.annotations.hex(),
        message.patch.hex(),
        sha256(message.body).hexdigest(),
    ]


def check_content(store: SqliteStore, folder: Path) -> None:
    """Check that all messages of the sample are there, in order, and no others."""
    recovered = store.recover()
    known = expected(folder)
    rows = list(store.index())
    for queue_id in (1, 2, 3):
        for kind, box in enumerate((box_of(queue_id), dead_box_of(queue_id))):
            messages, damaged, _ = store.load(box, [row.n for row in rows if row.box == box])
            assert [row_of(message) for message in messages] == known[f"{queue_id} {kind}"]
            assert damaged == []
    assert {str(each.entity_id): each.last_seq for each in recovered.entities} == known["last_seq"]
    assert [json.loads(each.description)["path"] for each in recovered.entities] == ["orders", "Invoices/2026", "empty"]
    assert (recovered.last_entity_id, recovered.dropped, recovered.damage) == (4, [], [])
    assert len(store.remembered(1)) == 43
    assert store.remembered(2) == store.remembered(4) == []


async def test_a_store_of_release_0_3_opens_with_everything_it_held(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages in every state with every field, in their order, from the file and from its log."""
    with caplog.at_level(logging.WARNING, "pairbus.broker.store"):
        store = SqliteStore(folder)
        check_content(store, folder)
    assert "it is migrated" in caplog.text and "is migrated: 81 messages" in caplog.text
    assert await commit(store, Insert(box_of(3), [StoredMessage(1, b"new", n=store.number())])) is None
    await store.close()
    assert not (folder / "migrating").exists()
    store = SqliteStore(folder)
    assert store.recover().damage == []
    assert [row.seq for row in store.index() if row.box == box_of(3)] == [1]
    await store.close()


async def test_a_broker_serves_what_was_migrated(folder: Path) -> None:
    """Down to the counts that an administrator sees, and duplicates that are still recognised."""
    async with Broker([NamespaceOptions("contoso")], data=folder.parent) as broker:
        queue = broker.namespace("contoso").queue("orders")
        assert queue is not None
        assert (queue.active_count, queue.deferred_count, queue.dead_count, queue.scheduled_count) == (31, 3, 3, 3)
        lock = lock_next(queue.main, 1_790_000_000_000)
        assert lock is not None and (lock.message.seq, lock.message.delivery_count) == (10, 1)
        assert broker.namespace("contoso").queue("deleted") is None


def digests(folder: Path) -> dict[str, str]:
    return {name: sha256((folder / name).read_bytes()).hexdigest() for name in FILES if (folder / name).exists()}


async def test_a_migration_that_is_interrupted_begins_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any moment before the rename, the old store is there and the half-made one is thrown away."""
    steps = 0

    class Killed(BaseException):
        pass

    whole = Committer.commit_all

    def dying(*args: Any) -> None:
        nonlocal steps
        steps += 1
        whole(*args)
        if steps == 3:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "commit_all", dying)
        patch.setattr(migration_module, "clear_remains", lambda folder: None)
        store = SqliteStore(folder)
        with pytest.raises(Killed):
            store.recover()
    assert (folder / "migrating" / "messages.db").exists()
    store = SqliteStore(folder)
    check_content(store, folder)
    await store.close()


async def test_a_kill_right_after_the_rename_leaves_the_new_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start removes the work files beside the new store."""
    with monkeypatch.context() as patch:
        patch.setattr(migration_module, "clear_remains", lambda folder: None)
        store = SqliteStore(folder)
        store.recover()
        await store.close()
    (folder / "migrating").mkdir(exist_ok=True)
    (folder / "migrating" / "commits").write_bytes(b"half")
    store = SqliteStore(folder)
    check_content(store, folder)
    await store.close()
    assert not (folder / "migrating").exists()


async def test_a_disk_without_room_for_the_copy_keeps_the_old_store(small_disk: Path) -> None:
    """The error says so; with room again the next start migrates."""
    folder = unpack(small_disk / "contoso")
    with closing(sqlite3.connect(folder / "messages.db")) as old:
        old.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    before = digests(folder)
    ballast = small_disk / "ballast"
    room = os.statvfs(small_disk)
    ballast.write_bytes(bytes(room.f_bavail * room.f_frsize - 100_000))
    with pytest.raises(StoreFull):
        SqliteStore(folder).recover()
    assert digests(folder) == before
    assert not (folder / "migrating").exists()
    ballast.unlink()
    store = SqliteStore(folder)
    check_content(store, folder)
    await store.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE box_2 SET body = zeroblob(length(body)) WHERE seq = 20",
        "UPDATE box_3 SET head = NULL WHERE seq = 7",
        "DELETE FROM box_2 WHERE seq = 20",
        "UPDATE counters SET high = 3 WHERE id = 2",
        "UPDATE queues SET description = '{}' WHERE queue_id = 1",
        "UPDATE remembered SET message_id = 'x' WHERE n = 5",
    ],
)
def test_a_damaged_store_is_not_migrated(folder: Path, change: str) -> None:
    """Unreadable messages would be lost for good: a person decides, with the tools of the old release."""
    with closing(sqlite3.connect(folder / "messages.db")) as vandal:
        vandal.execute(change)
        vandal.commit()
        vandal.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    before = digests(folder)
    with pytest.raises(StoreDamaged, match=r"written by release 0\.3; nothing was changed"):
        SqliteStore(folder).recover()
    assert {**digests(folder), "messages.db-wal": ""} == {**before, "messages.db-wal": ""}


def test_commits_that_are_missing_stop_the_migration(folder: Path) -> None:
    """The log was lost: the old release would announce it, and so does this one, before anything is changed."""
    (folder / "messages.db-wal").unlink()
    with pytest.raises(StoreDamaged, match="acknowledged commits are missing"):
        SqliteStore(folder).recover()


def test_a_salvage_of_an_old_store_names_the_release_that_can(folder: Path, tmp_path: Path) -> None:
    """A release reads its own layout only."""
    with pytest.raises(StoreError, match=r"release 0\.3"):
        salvage(folder, tmp_path / "new")


async def test_a_migrated_message_keeps_its_place_before_new_ones(folder: Path) -> None:
    """Order within a box is by row number; those of the old messages are the lowest."""
    store = SqliteStore(folder)
    store.recover()
    rows = list(store.index())
    main = [row for row in rows if row.box == box_of(1) and row.state == ACTIVE]
    assert [row.seq for row in main] == sorted(row.seq for row in main)
    assert store.number() == max(row.n for row in rows) + 1 == 82
    await store.close()


async def test_dead_letters_of_a_migrated_queue_keep_their_order(folder: Path) -> None:
    """A message that is dead-lettered after the migration takes its place among the dead letters by its sequence
    number; a client that peeks page by page would otherwise miss some of them."""
    async with Broker([NamespaceOptions("contoso")], data=folder.parent) as broker:
        queue, now_ms = broker.namespace("contoso").queue("orders"), 1_790_000_000_000
        assert queue is not None
        lock = lock_next(queue.main, now_ms)
        assert lock is not None and lock.message.seq == 10
        answered = asyncio.get_running_loop().create_future()
        queue.settle(queue.main, lock.token, Outcome.DEAD_LETTER, now_ms, answered.set_result)
        assert await answered is None
        seen: list[int] = []
        while page := queue.peek(queue.dead, seen[-1] + 1 if seen else 1, 1, now_ms):
            seen += [message.seq for message in page]
        assert seen == [7, 8, 9, 10]


async def test_store_without_entities_is_migrated_and_salvaged_without_a_false_loss(
    folder: Path, tmp_path: Path
) -> None:
    """The numbers of the store go along even when there is no entity: the number of commits, so that no commit is
    missed, and the highest entity id, which no later entity may get."""
    with closing(sqlite3.connect(folder / "messages.db", isolation_level=None)) as old:
        for [queue_id] in old.execute("SELECT queue_id FROM queues").fetchall():
            old.execute(f"DROP TABLE box_{queue_id * 2}")
            old.execute(f"DROP TABLE box_{queue_id * 2 + 1}")
        old.execute("DELETE FROM queues")
        old.execute("DELETE FROM remembered")
        old.execute("DELETE FROM counters WHERE id != 0")
    copy = tmp_path / "copy"
    for path in (folder, copy):
        store = SqliteStore(path)
        recovered = store.recover()
        assert (recovered.damage, recovered.entities, recovered.last_entity_id) == ([], [], 4)
        await store.close()
        if path is folder:
            assert salvage(folder, copy).notes == []
