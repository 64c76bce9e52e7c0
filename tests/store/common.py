"""Shared parts of the tests of the SQLite store."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pairbus.broker.store import (
    SCHEDULED,
    Insert,
    PutEntity,
    RecoveredStore,
    Remember,
    Store,
    StoredMessage,
    Write,
    box_of,
    dead_box_of,
)
from pairbus.broker.store.recovery import Recovery
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.errors import StoreError

Fields = tuple[object, ...]


def fields(message: StoredMessage) -> Fields:
    return tuple(getattr(message, name) for name in StoredMessage.__slots__)


async def commit(store: Store, *ops: Write) -> StoreError | None:
    for op in ops:
        store.write(op)
    result: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
    store.after_commit(result.set_result)
    return await result


def sample_message(seq: int) -> StoredMessage:
    """Different for every number; every ninth body is larger than a page."""
    source = random.Random(seq)
    size = 20_000 if seq % 9 == 0 else source.randint(0, 1500)
    return StoredMessage(
        seq,
        source.randbytes(size),
        annotations=source.randbytes(8),
        message_id=f"message {seq}",
        enqueued_ms=seq,
        expires_ms=seq + 1,
        ttl_ms=1,
        patch=source.randbytes(seq % 3),
        n=seq,
        origin_seq=seq % 5,
        hops=seq % 4,
        session_id="s" * (seq % 2),
    )


def rows_of(store: Store | Recovery, box: int) -> list[int]:
    """The numbers of the rows of a box, right after `recover`."""
    return [row.n for row in store.index() if row.box == box]


QUEUES = {1: '{"name": "one"}', 2: '{"name": "two"}'}
BOXES = {box: queue_id for queue_id in QUEUES for box in (box_of(queue_id), dead_box_of(queue_id))}


async def filled_store(
    folder: Path, *, rounds: int = 3, per_round: int = 12
) -> tuple[SqliteStore, dict[int, set[int]]]:
    """An open store with two queues, filled in several commits, and the numbers that each box holds."""
    store = SqliteStore(folder)
    store.recover()
    assert await commit(store, *[PutEntity(queue_id, text) for queue_id, text in QUEUES.items()]) is None
    held: dict[int, set[int]] = {box: set() for box in BOXES}
    seq = 0
    for n in range(rounds):
        if n == rounds - 1:
            with closing(sqlite3.connect(folder / "messages.db")) as other:
                other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        for box in BOXES:
            seqs = range(seq + 1, seq + 1 + per_round)
            seq += per_round
            ops: list[Write] = [Insert(box, [sample_message(each) for each in seqs]), Remember(1, [(f"id {seq}", seq)])]
            assert await commit(store, *ops) is None
            held[box].update(seqs)
    return store, held


@contextmanager
def unreadable(folder: Path) -> Iterator[None]:
    """Let reads of pages that are in the write-ahead log fail as on a bad disk (SQLITE_IOERR), and heal them at the
    end. No commit may happen in between."""
    log = folder / "messages.db-wal"
    data = log.read_bytes()
    assert data, "the pages are in the database: write something first"
    os.truncate(log, 0)
    try:
        yield
    finally:
        with log.open("r+b") as file:
            file.write(data)


# ── the contract ──

BOX, DEAD = box_of(1), dead_box_of(1)


def message(seq: int, body: bytes = b"body", **others: object) -> StoredMessage:
    """Make a message whose row has the same number, unless told otherwise."""
    return StoredMessage(seq, body, **({"n": seq} | others))  # type: ignore[arg-type]


def full_message(seq: int) -> StoredMessage:
    return StoredMessage(
        seq,
        bytes(range(256)) * 5,
        annotations=b"\xa3\x01a\x40",
        message_id="größe-\N{SNOWMAN}",
        state=SCHEDULED,
        enqueued_ms=1_700_000_000_000,
        expires_ms=2**62,
        scheduled_ms=1_700_000_000_001,
        ttl_ms=5,
        delivery_count=2**31,
        patch=b"\xa3\x01b\x41",
        n=seq,
        origin_seq=2**40,
        hops=3,
        session_id="sitzung-\N{SNOWMAN}",
    )


def everything(store: Store, box: int) -> list[tuple[object, ...]]:
    return [fields(each) for each in store.load(box, range(1, 2000))[0]]


def index(store: Store, box: int) -> list[int]:
    return [row.n for row in store.index() if row.box == box]


@dataclass
class Opened:
    """A store with one queue, and how to open it again with what it kept."""

    store: Store
    reopen: Callable[[], Awaitable[tuple[Store, RecoveredStore]]]
