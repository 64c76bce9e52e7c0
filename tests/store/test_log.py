"""The write-ahead log keeps its bound, whatever is written, and a full disk fails only what is too large for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pairbus.broker.store import Delete, Insert, Move, PutEntity, StoredMessage, Update, Write, box_of
from pairbus.broker.store.log import CHECKPOINT_BYTES, FILE_BYTES_MAX
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.errors import StoreError, StoreFull
from tests.store.common import DEAD, commit, rows_of

BOX = box_of(1)
Change = Callable[[list[StoredMessage]], list[Write]]


def _deleted(messages: list[StoredMessage]) -> list[Write]:
    return [Delete(BOX, [message.n for message in messages])]


def _dead(messages: list[StoredMessage]) -> list[Write]:
    return [Update(DEAD, message.revised(patch=b"a reason of some bytes")) for message in messages]


def _activated(messages: list[StoredMessage]) -> list[Write]:
    return [
        Move(BOX, message.n, BOX, message.revised(n=message.n + 1_000_000, seq=message.seq + 1_000_000))
        for message in messages
    ]


@pytest.mark.parametrize(
    ("change", "sizes", "group_size"),
    [
        (_deleted, (100, 1000, 1500, 3000), 500),
        (_dead, (10, 10, 250_000, 20), 40),
        (_activated, (10, 10, 250_000, 20), 40),
    ],
)
async def test_log_keeps_its_bound_while_a_queue_is_emptied(
    tmp_path: Path, change: Change, sizes: tuple[int, ...], group_size: int
) -> None:
    """The writes of a group say little about the pages that they change: the log is measured."""
    store = SqliteStore(tmp_path)
    store.recover()
    assert await commit(store, PutEntity(1, "{}")) is None
    count = 4 * 80_000_000 // sum(sizes)
    messages = [StoredMessage(n, bytes(sizes[n % 4]), n=n) for n in range(1, count + 1)]
    groups = [messages[at : at + group_size] for at in range(0, count, group_size)]
    log, largest = tmp_path / "messages.db-wal", 0
    for group in groups:
        assert await commit(store, Insert(BOX, group)) is None
    for group in groups:
        assert await commit(store, *change(group)) is None
        largest = max(largest, log.stat().st_size)
    assert largest < CHECKPOINT_BYTES + 4 * group_size * max(sizes), "the bound and one group"
    await store.close()


async def test_log_that_one_large_group_made_long_is_cut(tmp_path: Path) -> None:
    """A commit is never split where there is room, so its log may exceed the bound; the file does not stay so."""
    store = SqliteStore(tmp_path)
    store.recover()
    large = [StoredMessage(n, bytes(1_000_000), n=n) for n in range(1, 71)]
    assert await commit(store, PutEntity(1, "{}"), Insert(BOX, large)) is None
    log = tmp_path / "messages.db-wal"
    assert log.stat().st_size > FILE_BYTES_MAX
    for n in range(1, 4):
        assert await commit(store, Delete(BOX, [n])) is None
    assert log.stat().st_size <= FILE_BYTES_MAX
    await store.close()


async def test_full_disk_fails_a_large_activation_and_not_the_settlements_beside_it(small_disk: Path) -> None:
    """A message that becomes active is written again with its body: 600 KB, where less is left."""
    store = SqliteStore(small_disk / "data")
    store.recover()
    small = [StoredMessage(n, b"small", n=n) for n in range(1, 11)]
    large = [StoredMessage(n, bytes(100_000), n=n) for n in range(11, 17)]
    writes: list[Write] = [PutEntity(1, "{}"), Insert(BOX, small), *[Insert(BOX, [each]) for each in large]]
    for write in (*writes, writes[0]):
        assert await commit(store, write) is None  # one by one, for a short log: room in it is room for the activation
    (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    units: list[list[Write]] = [[Delete(BOX, [n])] for n in range(1, 6)]
    units += [_activated(large), [], [Update(BOX, small[7].revised(delivery_count=3))], [Delete(BOX, [10])]]
    told: list[tuple[int, StoreError | None]] = []
    for place, unit in enumerate(units):
        for op in unit:
            store.write(op)
        store.after_commit(partial(_tell, told, place))
    assert isinstance(await commit(store), StoreFull), "told of the whole group"
    failed = [place for place, error in told if error is not None]
    assert ([place for place, _ in told], failed) == ([*range(len(units))], [5, 6])
    await store.close()
    store = SqliteStore(small_disk / "data")
    assert store.recover().damage == []
    assert rows_of(store, BOX) == [*range(6, 10), *range(11, 17)]
    assert store.load(BOX, [8])[0][0].delivery_count == 3
    await store.close()


def _tell(told: list[tuple[int, StoreError | None]], place: int, error: StoreError | None) -> None:
    told.append((place, error))
