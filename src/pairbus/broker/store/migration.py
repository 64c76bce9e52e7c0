"""A store of version 1 (release 0.3) becomes one of this version.

Version 1 had a table for each box, `box_N`, and one row of counters for each queue. The new store is built in a folder
beside the old file, whole and durable, and takes the old file's place by one rename. Until then the old store is
untouched: after a kill or a full disk the next start begins again.

Before that, the log of the old database is copied into it: after the rename it would be read as the log of the new one.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import struct
from collections.abc import Iterator
from heapq import merge
from itertools import repeat
from pathlib import Path
from typing import Any
from zlib import crc32

from pairbus.broker.store import Insert, PutEntity, Remember, StoredMessage, box_of, dead_box_of
from pairbus.broker.store.committer import Committer, EntityNumbers, Totals
from pairbus.broker.store.progress import PacedTelling
from pairbus.broker.store.records import text_crc
from pairbus.broker.store.schema import FILE_NAME, create, open_for_writing, store_error
from pairbus.errors import StoreDamaged, StoreError
from pairbus.host.commit_file import CommitFile
from pairbus.host.folders import FOLDER_MODE, sync_folder

logger = logging.getLogger("pairbus.broker.store")

FOLDER_NAME = "migrating"
GROUP_ROWS = 500
_HEAD = struct.Struct("<BIqqqqII")
"state, delivery count, enqueued, expires, scheduled, ttl, length of message id, length of annotations; patch = rest"
_COUNTERS = struct.Struct("<qqqq")
_SPREAD = 0x9E3779B1
_STORE_COUNTER = 0


def clear_remains(folder: Path) -> None:
    """Remove the files of a migration that was interrupted."""
    shutil.rmtree(folder / FOLDER_NAME, ignore_errors=True)


def migrate(path: Path, noted: int | None, progress: PacedTelling) -> None:
    """Replace the store of version 1 at `path`. StoreError: it failed, and the old store is unchanged.

    `noted`: the number in the file of commits; the new store counts on above it.
    """
    logger.warning("%s was written by an older release: it is migrated, which takes a while if it is large", path)
    work = path.parent / FOLDER_NAME
    clear_remains(path.parent)
    try:
        _copy_log_back(path)
        work.mkdir(FOLDER_MODE)
        copied = _build(path, work, noted or 0, progress)
        (work / FILE_NAME).replace(path)
        sync_folder(path.parent)
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    except (TypeError, UnicodeDecodeError, struct.error) as error:  # a column of a type that was never written
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be migrated: {error.strerror}. It was left as it is.") from error
    finally:
        clear_remains(path.parent)
    logger.warning("%s is migrated: %d messages", path, copied)


def _copy_log_back(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        [[verdict], *_] = connection.execute("PRAGMA quick_check(1)").fetchall()
        if verdict != "ok":
            raise _damaged(path, str(verdict).replace("\n", " "))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.close()
    log = path.with_name(path.name + "-wal")
    if log.exists():
        raise StoreError(f"{path} cannot be migrated: its log {log.name} is in use by another program.")


def _build(path: Path, work: Path, noted: int, progress: PacedTelling) -> int:
    """Write the whole new store and return how many messages it has."""
    create(work / FILE_NAME)
    old = _Old(path)
    try:
        counters = old.counters()
        store = counters.get(_STORE_COUNTER, (0, 0, 0))
        queues = old.queues()
        if store[0] < noted:
            raise _damaged(path, f"the last {noted - store[0]} acknowledged commits are missing")
        totals = Totals(commits=store[0], last_id=max([store[1], *queues]))
        totals.counters = {queue_id: EntityNumbers(high=counters[queue_id][0]) for queue_id in queues}
        committer = Committer(work / FILE_NAME, open_for_writing(work / FILE_NAME), totals, CommitFile(work))
        try:
            committer.commit_all(*[PutEntity(queue_id, text) for queue_id, text in queues.items()])
            n = 0
            for queue_id in queues:
                n = _copy_queue(old, committer, queue_id, sum(counters[queue_id][1:]), n, progress)
            for queue_id, ids in old.remembered(set(queues)):
                committer.commit_all(Remember(queue_id, ids))
        finally:
            committer.close()
        return n
    finally:
        old.close()


def _copy_queue(old: _Old, committer: Committer, queue_id: int, expected: int, n: int, progress: PacedTelling) -> int:
    """Copy the messages of a queue under the row numbers behind `n`, and return the last one used."""
    first = n
    boxes: dict[int, list[StoredMessage]] = {box_of(queue_id): [], dead_box_of(queue_id): []}
    rows = [zip(repeat(box), old.messages(queue_id * 2 + kind)) for kind, box in enumerate(boxes)]
    # Both boxes are numbered as one, because a message keeps its number when it is dead-lettered.
    for box, message in merge(*rows, key=lambda row: row[1].seq):
        n += 1
        message.n = n
        boxes[box].append(message)
        if (n - first) % GROUP_ROWS == 0:
            _insert(committer, boxes)
            progress.tell(f"migrating {old.path}: {n} messages copied")
    _insert(committer, boxes)
    if n - first != expected:
        raise _damaged(old.path, f"queue {queue_id} should hold {expected} messages, {n - first} were found")
    return n


def _insert(committer: Committer, boxes: dict[int, list[StoredMessage]]) -> None:
    """Commit the messages that were gathered for each box, and gather anew."""
    committer.commit_all(*[Insert(box, messages) for box, messages in boxes.items()])
    boxes.update({box: [] for box in boxes})


class _Old:
    """The old database. A row that does not match its checksum ends the migration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        self._connection.text_factory = bytes

    def close(self) -> None:
        self._connection.close()

    def counters(self) -> dict[int, tuple[int, int, int]]:
        """Return queue → (highest sequence number, messages, dead letters); 0 → (commits, highest queue id, 0)."""
        by_queue = {}
        for counter_id, high, live, dead, crc in self._rows("SELECT id, high, live, dead, crc FROM counters"):
            self._check(crc32(_COUNTERS.pack(counter_id, high, live, dead)) == crc, f"the counters of {counter_id}")
            by_queue[counter_id] = (high, live, dead)
        return by_queue

    def queues(self) -> dict[int, str]:
        descriptions = {}
        for queue_id, description, crc in self._rows("SELECT queue_id, description, crc FROM queues ORDER BY queue_id"):
            self._check(text_crc(queue_id, description) == crc, f"the description of queue {queue_id}")
            descriptions[queue_id] = description.decode()
        return descriptions

    def remembered(self, queue_ids: set[int]) -> Iterator[tuple[int, list[tuple[str, int]]]]:
        ids: list[tuple[str, int]] = []
        last = 0
        for queue_id, until_ms, crc, message_id in self._rows(
            "SELECT queue_id, until_ms, crc, message_id FROM remembered ORDER BY queue_id, n"
        ):
            self._check(text_crc(queue_id ^ until_ms, message_id) == crc, f"a message id of queue {queue_id}")
            if ids and (queue_id != last or len(ids) == GROUP_ROWS):
                yield last, ids
                ids = []
            last = queue_id
            if queue_id in queue_ids:
                ids.append((message_id.decode(), until_ms))
        if ids:
            yield last, ids

    def messages(self, box: int) -> Iterator[StoredMessage]:
        sql = f"SELECT seq, head, head_crc, body_crc, body FROM box_{box} ORDER BY seq"
        for seq, head, head_crc, body_crc, body in self._rows(sql):
            seed = (seq ^ (seq >> 32) ^ (box * _SPREAD)) & 0xFFFFFFFF
            is_intact = crc32(head, seed) == head_crc and crc32(body) == body_crc
            self._check(is_intact, f"message {seq} of queue {box // 2}")
            state, deliveries, enqueued, expires, scheduled, ttl, id_size, annotations_size = _HEAD.unpack_from(head)
            id_end = _HEAD.size + id_size
            patch_at = id_end + annotations_size
            yield StoredMessage(
                seq,
                body,
                annotations=head[id_end:patch_at],
                message_id=head[_HEAD.size : id_end].decode(),
                state=state,
                enqueued_ms=enqueued,
                expires_ms=expires,
                scheduled_ms=scheduled,
                ttl_ms=ttl,
                delivery_count=deliveries,
                patch=head[patch_at:],
            )

    def _rows(self, sql: str) -> Iterator[Any]:
        return self._connection.execute(sql)

    def _check(self, is_intact: bool, what: str) -> None:
        if not is_intact:
            raise _damaged(self.path, f"{what} cannot be read")


def _damaged(path: Path, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is damaged: {what}. It was written by release 0.3; nothing was changed. Copy what is intact into a new"
        f" folder with `pairbus store salvage {path.parent} --to NEWFOLDER` of that release, and start with the copy."
    )
