"""A backup is the store as it was after one commit, whatever is written while it is made."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from pairbus.broker.store import Delete, Insert, InsertPayload, PutEntity, SetSessionState, StoredMessage, box_of
from pairbus.broker.store import backup as backup_module
from pairbus.broker.store.backup import Backup, back_up_stopped
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.broker.store.verification import verify
from pairbus.errors import StoreError, StoreFull
from tests.store.common import commit, filled_store, sample_message

BOX = box_of(1)
LARGE = bytes(60_000)
SIX_MB = 100  # messages of this size


def new_draft(folder: Path) -> Path:
    draft = folder / "copy.new"
    draft.write_bytes(b"")
    return draft


async def store_of_six_mb(folder: Path) -> SqliteStore:
    store = SqliteStore(folder)
    store.recover()
    assert await commit(store, PutEntity(1, '{"name": "q"}')) is None
    for first in range(1, SIX_MB, 10):
        messages = [StoredMessage(n, LARGE, n=n) for n in range(first, first + 10)]
        assert await commit(store, Insert(BOX, messages)) is None
    return store


def numbers_in(draft: Path, folder: Path) -> set[int]:
    """Start a store on the copy; it must be whole."""
    folder.mkdir()
    shutil.copy(draft, folder / "messages.db")
    store = SqliteStore(folder)
    found = store.recover()
    numbers = {row.n for row in store.index()}
    assert found.damage == []
    assert len(store.load(BOX, sorted(numbers)).messages) == len(numbers)
    asyncio.run(store.close())
    return numbers


async def backed_up(store: SqliteStore, draft: Path) -> Backup:
    backup = Backup(draft)
    try:
        await store.back_up(backup)
    finally:
        backup.close(keep=backup.contents is not None)
    return backup


async def test_copy_is_the_store_after_one_of_the_commits_that_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit takes one message out and puts another in. The copy has all of one commit and nothing of the next."""
    monkeypatch.setattr(backup_module, "PAUSE_LEAST_S", 0.05)
    store = await store_of_six_mb(tmp_path / "data")
    draft = new_draft(tmp_path)
    copying = asyncio.ensure_future(backed_up(store, draft))
    done = 0
    while not copying.done():
        done += 1
        new = StoredMessage(SIX_MB + done, LARGE, n=SIX_MB + done)
        assert await commit(store, Insert(BOX, [new]), Delete(BOX, [done])) is None
    contents = (await copying).contents
    await store.close()
    assert contents is not None and contents.messages == SIX_MB
    numbers = await asyncio.to_thread(numbers_in, draft, tmp_path / "restored")
    moved = min(numbers) - 1
    assert 1 <= moved <= done
    assert numbers == set(range(moved + 1, moved + 1 + SIX_MB))
    assert verify(draft).contents == contents


async def test_log_keeps_its_bound_during_a_backup(tmp_path: Path) -> None:
    """A connection that read the store all the time would hold the log back, which would grow without bound."""
    store = await store_of_six_mb(tmp_path / "data")
    draft = new_draft(tmp_path)
    copying = asyncio.ensure_future(backed_up(store, draft))
    written = longest = 0
    n = 1000
    while not copying.done() or written < 80 << 20:
        n += 20
        assert await commit(store, Insert(BOX, [StoredMessage(n + i, LARGE, n=n + i) for i in range(20)])) is None
        assert await commit(store, Delete(BOX, range(n, n + 20))) is None
        written += 20 * len(LARGE)
        longest = max(longest, (tmp_path / "data" / "messages.db-wal").stat().st_size)
    await copying
    await store.close()
    assert longest < 48 << 20


async def test_store_without_a_commit_since_its_start_can_be_copied(tmp_path: Path) -> None:
    """The thread that commits begins with the first write; a backup begins it too."""
    store, held = await filled_store(tmp_path / "data")
    await store.close()
    store = SqliteStore(tmp_path / "data")
    store.recover()
    backup = await backed_up(store, new_draft(tmp_path))
    await store.close()
    assert backup.contents is not None
    assert backup.contents.messages == sum(map(len, held.values()))


async def test_closing_the_store_ends_its_backup(tmp_path: Path) -> None:
    """A broker that is asked to stop does not wait for a copy, and leaves no part of one behind."""
    store = await store_of_six_mb(tmp_path / "data")
    draft = new_draft(tmp_path)
    copying = asyncio.ensure_future(backed_up(store, draft))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreError, match="given up before it was complete"):
        await copying
    assert not draft.exists()


async def test_second_backup_at_the_same_time_is_refused(tmp_path: Path) -> None:
    """The first goes on."""
    store = await store_of_six_mb(tmp_path / "data")
    first = asyncio.ensure_future(backed_up(store, new_draft(tmp_path)))
    await asyncio.sleep(0)
    other = tmp_path / "other.new"
    other.write_bytes(b"")
    with pytest.raises(StoreError, match="is being backed up already, to"):
        await backed_up(store, other)
    assert (await first).contents is not None
    await store.close()


async def test_target_without_room_is_told_and_commits_go_on(tmp_path: Path, small_disk: Path) -> None:
    """The copy is given up before the disk is full: the store might be on the same one."""
    store = await store_of_six_mb(tmp_path / "data")
    draft = new_draft(small_disk)
    with pytest.raises(StoreFull, match="No space left for a backup in"):
        await backed_up(store, draft)
    assert os.listdir(small_disk) == []
    assert await commit(store, Insert(BOX, [sample_message(5000)])) is None
    await store.close()


async def test_only_an_empty_file_is_written(tmp_path: Path) -> None:
    """A wrong path must not cost a user a file."""
    (tmp_path / "precious").write_bytes(b"precious")
    for place in (tmp_path / "precious", tmp_path, tmp_path / "missing"):
        with pytest.raises(StoreError):
            Backup(place)
    assert (tmp_path / "precious").read_bytes() == b"precious"


async def test_store_in_memory_says_that_there_is_nothing_to_copy(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="keeps its messages in memory"):
        await MemoryStore().back_up(Backup(new_draft(tmp_path)))


async def test_copy_of_a_stopped_store_leaves_it_as_it_is(tmp_path: Path) -> None:
    """After a kill the newest commits are in the log alone: they are copied, and the log stays."""
    folder = tmp_path / "data"
    store, held = await filled_store(folder)
    killed = tmp_path / "killed"
    shutil.copytree(folder, killed)
    (killed / "messages.db-shm").unlink()
    await store.close()
    before = {path.name: path.read_bytes() for path in killed.iterdir() if path.name != "lock"}
    draft = new_draft(tmp_path)
    contents, missing = back_up_stopped(killed, draft, lambda _: None)
    assert {path.name: path.read_bytes() for path in killed.iterdir() if path.name != "lock"} == before
    assert (contents.messages, missing) == (sum(map(len, held.values())), 0)
    assert verify(draft).contents == contents


async def test_commits_that_a_stopped_store_lost_are_told(tmp_path: Path) -> None:
    """The log of a killed broker was removed: the copy is made, and nobody takes it for complete."""
    folder = tmp_path / "data"
    store, _ = await filled_store(folder)
    killed = tmp_path / "killed"
    shutil.copytree(folder, killed)
    await store.close()
    for name in ("messages.db-wal", "messages.db-shm"):
        (killed / name).unlink()
    assert back_up_stopped(killed, new_draft(tmp_path), lambda _: None)[1] > 0


async def test_backup_beside_the_log_of_another_store_is_refused(tmp_path: Path) -> None:
    """SQLite would apply the log to the copy, and destroy it."""
    store, _ = await filled_store(tmp_path / "data")
    draft = new_draft(tmp_path)
    await backed_up(store, draft)
    folder = tmp_path / "restored"
    shutil.copytree(tmp_path / "data", folder)
    await store.close()
    shutil.copy(draft, folder / "messages.db")
    with pytest.raises(StoreError, match="belongs to another store"):
        SqliteStore(folder).recover()
    assert (folder / "messages.db").read_bytes() == draft.read_bytes()


@pytest.mark.parametrize("part", ["body", "payload", "state", "head"])
async def test_verification_finds_a_flipped_bit_anywhere(tmp_path: Path, part: str) -> None:
    """The copy has what the store had, damage too: only reading every row shows it."""
    marks = {name: name.encode() * 50 for name in ("body", "payload", "state", "head")}
    store = SqliteStore(tmp_path / "data")
    store.recover()
    assert await commit(store, PutEntity(1, '{"name": "q"}')) is None
    writes = (
        InsertPayload(3, 1, marks["payload"]),
        Insert(BOX, [StoredMessage(1, marks["body"], n=1, annotations=marks["head"])]),
        Insert(BOX, [StoredMessage(2, b"", n=2, payload=3)]),
        SetSessionState(1, 4, "session", 1, marks["state"]),
    )
    assert await commit(store, *writes) is None
    draft = new_draft(tmp_path)
    await backed_up(store, draft)
    await store.close()
    assert verify(draft).damage == []
    data = bytearray(draft.read_bytes())
    data[data.index(marks[part]) + 7] ^= 1
    draft.write_bytes(data)
    assert verify(draft).damage


async def test_verification_finds_a_damaged_structure(tmp_path: Path) -> None:
    """The start of a broker checks a large file while it serves it; a backup is checked before it gets its name."""
    store, _ = await filled_store(tmp_path / "data")
    draft = new_draft(tmp_path)
    await backed_up(store, draft)
    await store.close()
    data = bytearray(draft.read_bytes())
    data[36:40] = (5).to_bytes(4)  # pages that are said to be free
    draft.write_bytes(data)
    assert verify(draft).damage == [f"{draft}: its structure is damaged."]


async def test_copy_is_private(tmp_path: Path) -> None:
    """Bodies are private, whatever the umask, and SQLite's own files are gone at the end."""
    usual = os.umask(0)
    try:
        store, _ = await filled_store(tmp_path / "data")
        await store.close()
        draft = tmp_path / "copy.new"
        draft.touch(0o600)
        back_up_stopped(tmp_path / "data", draft, lambda _: None)
    finally:
        os.umask(usual)
    assert draft.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["copy.new", "data"]
