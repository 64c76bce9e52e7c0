"""Troubles that only a store on a disk can meet: other owners, other files, a full disk, a sudden death."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pairbus.broker.store import (
    UNLIMITED,
    Delete,
    Insert,
    PutEntity,
    Remember,
    StoredMessage,
    Update,
    Write,
    box_of,
)
from pairbus.broker.store.bodies import KEPT_BYTES_MAX, SharedBodies
from pairbus.broker.store.committer import Committer, Totals
from pairbus.broker.store.group import CommitGroup
from pairbus.broker.store.progress import PacedTelling
from pairbus.broker.store.reader import StoreReader
from pairbus.broker.store.records import payload_crc
from pairbus.broker.store.schema import create, open_for_writing
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.broker.store.writer import PromptSwitching
from pairbus.errors import StoreDamaged, StoreError, StoreForeign, StoreFull, StoreInUse, StoreNewer
from pairbus.host.commit_file import CommitFile
from tests.store.child_without_sync import CALLS
from tests.store.child_writer import GROUP, body_of
from tests.store.common import DEAD, commit, fields, filled_store, rows_of, sample_message

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("child_writer.py")
BOX = box_of(1)


async def test_a_second_owner_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    """Two brokers on one folder would give out the same sequence numbers."""
    first = SqliteStore(tmp_path)
    first.recover()
    with pytest.raises(StoreInUse, match=rf"{tmp_path}.*process {os.getpid()}"):
        SqliteStore(tmp_path).recover()
    await first.close()
    second = SqliteStore(tmp_path)
    assert second.recover().damage == []
    await second.close()


@pytest.mark.parametrize("content", [b"", b"a text file\n", b"x" * 10_000])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    """A wrong folder on the command line must not cost anyone a file."""
    path = tmp_path / "messages.db"
    path.write_bytes(content)
    with pytest.raises(StoreForeign, match=str(path)):
        SqliteStore(tmp_path).recover()
    assert path.read_bytes() == content


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    """The other database would open, and its tables would not be ours."""
    path = tmp_path / "messages.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE queues (a, b)")
    other.close()
    with pytest.raises(StoreForeign, match=str(path)):
        SqliteStore(tmp_path).recover()


def test_a_newer_store_is_refused_with_both_versions(tmp_path: Path) -> None:
    """An old program cannot know which data it would destroy."""
    path = tmp_path / "messages.db"
    create(path)
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 3")
    newer.close()
    with pytest.raises(StoreNewer, match=r"store version 3, this one knows 2.*Upgrade"):
        SqliteStore(tmp_path).recover()


async def test_a_lost_database_file_is_not_mistaken_for_a_new_folder(tmp_path: Path) -> None:
    """An empty start where messages were would be silent loss."""
    store, _ = await filled_store(tmp_path, rounds=1)
    await store.close()
    (tmp_path / "messages.db").unlink()
    with pytest.raises(StoreDamaged, match="missing"):
        SqliteStore(tmp_path).recover()


@pytest.mark.parametrize("change", ["DROP TABLE payloads", "ALTER TABLE messages RENAME COLUMN head TO haed"])
async def test_a_table_that_is_gone_or_changed_is_damage(tmp_path: Path, change: str) -> None:
    """A flipped bit in a table's name leaves a valid database in which the table has another name."""
    store, _ = await filled_store(tmp_path, rounds=1)
    await store.close()
    with sqlite3.connect(tmp_path / "messages.db") as vandal:
        vandal.execute(change)
    vandal.close()
    with pytest.raises(StoreDamaged, match=r"the table (payloads|messages)"):
        SqliteStore(tmp_path).recover()


async def test_a_creation_that_was_interrupted_is_made_again(tmp_path: Path) -> None:
    """Killed between its first two steps, the folder must not be refused for ever."""
    CommitFile(tmp_path).write(0)
    (tmp_path / "messages.new").write_bytes(b"half")
    store = SqliteStore(tmp_path)
    assert store.recover().damage == []
    await store.close()


def test_progress_speaks_about_once_a_second_and_not_in_the_first(tmp_path: Path) -> None:
    """A quick start logs no progress; a slow one says where it is."""
    now_s = 100.0
    said: list[str] = []
    progress = PacedTelling(said.append, lambda: now_s)
    for now_s in (100.9, 101.0, 101.5, 101.9, 102.1):
        progress.tell(f"at {now_s}")
    assert said == ["at 101.0", "at 102.1"]


async def test_reading_the_index_tells_its_progress(tmp_path: Path) -> None:
    """The index is where the time of a start goes."""
    store, _ = await filled_store(tmp_path, rounds=1)
    await store.close()
    said: list[str] = []
    clock = iter(range(1000))
    reader = StoreReader(tmp_path / "messages.db", PacedTelling(said.append, lambda: next(clock)))
    reader.recovery.recover()
    said.clear()
    list(reader.recovery.index())
    reader.close()
    assert said == [f"recovering {tmp_path}/messages.db: 48 messages read"]


# ── a full disk ──


def test_group_without_disk_space_fails_whole_and_store_goes_on(tmp_path: Path) -> None:
    """The sender is told to send again; acknowledged messages stay."""
    path = tmp_path / "messages.db"
    create(path)
    connection = open_for_writing(path)
    committer = Committer(path, connection, Totals(), CommitFile(tmp_path))

    assert _write(committer, PutEntity(1, "{}"), Insert(BOX, [StoredMessage(1, b"kept", n=1)])) is None
    connection.execute("PRAGMA max_page_count = 40")
    large = [StoredMessage(seq, bytes(10_000), n=seq) for seq in range(2, 40)]
    assert isinstance(_write(committer, Delete(BOX, [1]), Insert(BOX, large)), StoreFull)
    assert _write(committer, Insert(BOX, [StoredMessage(2, b"small", n=2)])) is None
    committer.close()
    reader = StoreReader(path, PacedTelling(None))
    assert [each.last_seq for each in reader.recovery.recover()] == [2]
    assert rows_of(reader.recovery, BOX) == [1, 2]
    assert reader.recovery.damage == []
    reader.close()


def _write(committer: Committer, *ops: PutEntity | Insert | Delete) -> StoreError | None:
    group = CommitGroup()
    for op in ops:
        group.add(op)
    return committer.commit(group)


def test_failed_rollback_is_repeated_before_the_next_group(tmp_path: Path) -> None:
    """On a broken disk the rollback may fail too. The writer must live on, and half a group must never be committed."""
    path = tmp_path / "messages.db"
    create(path)
    connection = open_for_writing(path)
    committer = Committer(path, connection, Totals(), CommitFile(tmp_path))
    assert _write(committer, PutEntity(1, "{}"), Insert(BOX, [StoredMessage(1, b"kept", n=1)])) is None
    connection.set_authorizer(lambda _, what, *__: sqlite3.SQLITE_DENY if what == "ROLLBACK" else sqlite3.SQLITE_OK)
    taken_number = Insert(BOX, [StoredMessage(1, b"again", n=1)])
    assert isinstance(_write(committer, Delete(BOX, [1]), PutEntity(2, "{}"), taken_number, taken_number), StoreError)
    assert isinstance(_write(committer, Insert(BOX, [StoredMessage(2, b"too early", n=2)])), StoreError)
    connection.set_authorizer(None)
    assert isinstance(_write(committer, Insert(BOX, [StoredMessage(3, b"rolls back what was left", n=3)])), StoreError)
    assert _write(committer, Insert(BOX, [StoredMessage(4, b"goes on", n=4)])) is None
    committer.close()
    reader = StoreReader(path, PacedTelling(None))
    assert [each.entity_id for each in reader.recovery.recover()] == [1]
    assert rows_of(reader.recovery, BOX) == [1, 4]
    assert reader.recovery.damage == []
    reader.close()


async def test_a_real_full_disk_fails_the_group_and_space_heals_it(small_disk: Path) -> None:
    """The same with a file system that is really full, where also the log meets the end."""
    ballast = small_disk / "ballast"
    store = SqliteStore(small_disk / "data")
    store.recover()
    assert await commit(store, PutEntity(1, "{}"), Insert(BOX, [sample_message(1)])) is None
    ballast.write_bytes(bytes(1024 * 1024))
    errors = [await commit(store, Insert(BOX, [StoredMessage(seq, bytes(200_000), n=seq)])) for seq in range(2, 12)]
    assert any(isinstance(error, StoreFull) for error in errors)
    assert all(error is None or isinstance(error, StoreFull) for error in errors)
    kept = [1, *(seq for seq, error in enumerate(errors, 2) if error is None)]
    assert [each.seq for each in store.load(BOX, range(99))[0]] == kept
    ballast.unlink()
    assert await commit(store, Insert(BOX, [StoredMessage(50, bytes(200_000), n=50)])) is None
    await store.close()
    store = SqliteStore(small_disk / "data")
    recovered = store.recover()
    assert rows_of(store, BOX) == [*kept, 50]
    assert recovered.damage == []
    await store.close()


async def test_full_disk_fails_sends_and_not_the_settlements_beside_them(tmp_path: Path) -> None:
    """Units stay whole: a message that is forwarded neither leaves its box nor enters another. Callbacks keep their
    order, and one without writes of its own is told of the whole group."""
    store = SqliteStore(tmp_path)
    store.recover()
    rows = [StoredMessage(seq, b"kept", n=seq) for seq in (1, 2, 3)]
    assert await commit(store, PutEntity(1, "{}"), Insert(BOX, rows)) is None
    loop = asyncio.get_running_loop()
    store.hindrance = lambda takes_room, done: loop.call_soon(done, FULL if takes_room else None)  # type: ignore[assignment]
    units: list[tuple[Write, ...]] = [
        (Insert(BOX, [StoredMessage(4, b"sent", n=4)]),),
        (Delete(BOX, [1]),),
        (Insert(DEAD, [StoredMessage(5, b"forwarded", n=5)]), Delete(BOX, [2])),
        (),
        (Update(BOX, rows[2].revised(delivery_count=7)),),
    ]
    told: list[tuple[int, StoreError | None]] = []
    for place, unit in enumerate(units):
        for op in unit:
            store.write(op)
        store.after_commit(partial(_tell, told, place))
    store.after_commit(partial(_tell, told, len(units)))
    await store.close()
    assert told == [(0, FULL), (1, None), (2, FULL), (3, FULL), (4, None), (5, FULL)]
    store = SqliteStore(tmp_path)
    assert store.recover().damage == []
    assert (rows_of(store, BOX), rows_of(store, DEAD)) == ([2, 3], [])
    assert [each.delivery_count for each in store.load(BOX, [2, 3])[0]] == [0, 7]
    await store.close()


FULL = StoreFull("no space left")


def _tell(told: list[tuple[int, StoreError | None]], place: int, error: StoreError | None) -> None:
    told.append((place, error))


async def test_real_full_disk_is_emptied_beside_senders(small_disk: Path) -> None:
    """Senders that try again at once share every commit with the receivers, and must not keep them from settling."""
    store = SqliteStore(small_disk / "data")
    store.recover()
    assert await commit(store, PutEntity(1, "{}")) is None
    seq, error = 0, None
    while error is None:
        seq += 1
        error = await commit(store, Insert(BOX, [StoredMessage(seq, bytes(100_000), n=seq)]))
    (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    refused = 0
    for n in range(1, seq):
        told: list[tuple[int, StoreError | None]] = []
        store.write(Insert(BOX, [StoredMessage(1000 + n, bytes(100_000), n=1000 + n)]))
        store.after_commit(partial(_tell, told, 0))
        store.write(Delete(BOX, [n]))
        assert await commit(store) is None, "the settlement"
        refused += isinstance(told[0][1], StoreFull)
    assert refused
    await store.close()


async def test_real_full_disk_fails_probes_while_it_has_no_room_for_a_large_message(small_disk: Path) -> None:
    """A failed send leaves room in the log for a few pages: a probe that took these would tell senders to come back."""
    store = SqliteStore(small_disk / "data")
    store.recover()
    assert await commit(store, PutEntity(1, "{}")) is None
    (small_disk / "ballast").write_bytes(bytes(max(shutil.disk_usage(small_disk).free - 100_000, 0)))
    assert isinstance(await commit(store, Insert(BOX, [StoredMessage(1, bytes(200_000), n=1)])), StoreFull)
    assert isinstance(await _probe(store), StoreFull)
    (small_disk / "ballast").unlink()
    assert await _probe(store) is None
    await store.close()


async def test_many_probes_share_one_commit(tmp_path: Path) -> None:
    """Pings of a thousand clients cost the disk no more than one message does, and none beside messages."""
    store, _ = await filled_store(tmp_path, rounds=1)
    before = store.commit_times.durations.count
    answers = [_probe(store) for _ in range(1000)]
    assert set(await asyncio.gather(*answers)) == {None}
    assert store.commit_times.durations.count - before == 1
    store.write(Insert(BOX, [sample_message(500)]))
    answers = [_probe(store) for _ in range(1000)]
    assert set(await asyncio.gather(*answers)) == {None}
    assert store.commit_times.durations.count - before == 2
    await store.close()


def _probe(store: SqliteStore) -> asyncio.Future[StoreError | None]:
    result: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
    store.probe(result.set_result)
    return result


async def test_a_write_error_fails_the_group_and_the_store_goes_on(tmp_path: Path) -> None:
    """A limit on file sizes makes the system refuse the write of the log in its middle."""
    store, _ = await filled_store(tmp_path, rounds=1)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, usual[1]))
        error = await commit(store, Insert(BOX, [StoredMessage(seq, bytes(50_000), n=seq) for seq in range(100, 140)]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        signal.signal(signal.SIGXFSZ, previous)
    assert isinstance(error, StoreError)
    assert await commit(store, Insert(BOX, [sample_message(200)])) is None
    await store.close()
    store = SqliteStore(tmp_path)
    assert store.recover().damage == []
    assert rows_of(store, BOX) == [*range(1, 13), 200]
    await store.close()


@pytest.mark.skipif(platform.machine() not in CALLS or sys.platform != "linux", reason="syncs fail by Linux's seccomp")
async def test_group_whose_sync_failed_does_not_come_back_after_a_kill(tmp_path: Path) -> None:
    """The log has the whole group when its sync fails: the next start would find a deletion of which the receiver was
    told that it did not happen."""
    command = [sys.executable, "-m", "tests.store.child_without_sync", str(tmp_path)]
    options = {"capture_output": True, "text": True, "check": False, "timeout": 60, "cwd": ROOT}
    child = await asyncio.to_thread(partial(subprocess.run, command, **options))
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert "disk I/O error" in child.stdout
    store = SqliteStore(tmp_path)
    assert store.recover().damage == []
    assert rows_of(store, BOX) == [1]
    assert await commit(store, Insert(BOX, [StoredMessage(3, b"third", n=3)])) is None
    await store.close()
    store = SqliteStore(tmp_path)
    assert store.recover().damage == []
    assert rows_of(store, BOX) == [1, 3]
    await store.close()


# ── sudden death, and the thread ──


def test_after_a_kill_every_group_that_was_told_committed_is_there(tmp_path: Path) -> None:
    """Accepted means committed: killed at moments of its own choosing, again and again on the same folder."""
    for lines in (1, 7, 40, 90):
        child = subprocess.Popen([sys.executable, str(CHILD), str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(lines):
            child.stdout.readline()
        child.kill()
        told = [int(line) for line in child.stdout.read().split()]
        child.wait()
        child.stdout.close()

        reader_of = SqliteStore(tmp_path)
        recovered = reader_of.recover()
        seqs = rows_of(reader_of, BOX)
        last = recovered.entities[0].last_seq
        assert last % GROUP == 0, "a group is there whole or not at all"
        assert seqs == [seq for seq in range(1, last + 1) if seq % GROUP != 1]
        assert recovered.damage == []
        assert last >= max(told, default=0)
        loaded, damaged, _ = reader_of.load(BOX, seqs)
        assert damaged == []
        assert all(each.body == body_of(each.seq) for each in loaded)
        asyncio.run(reader_of.close())


async def test_large_groups_take_every_size_of_statement(tmp_path: Path) -> None:
    """Statements come in fixed sizes; every remainder must arrive."""
    store = SqliteStore(tmp_path)
    store.recover()
    await commit(store, PutEntity(1, "{}"))
    for count in (1, 2, 3, 255, 256, 257, 511, 1000):
        assert await commit(store, Insert(BOX, [sample_message(seq) for seq in range(1, count + 1)])) is None
        for seq in range(1, count + 1):
            changed = sample_message(seq)
            changed.delivery_count = seq
            store.write(Update(BOX, changed))
        assert await commit(store) is None
        assert [each.delivery_count for each in store.load(BOX, range(2000))[0]] == list(range(1, count + 1))
        odd = [*range(1, count + 1, 2)]
        assert await commit(store, Delete(BOX, odd)) is None
        assert [each.seq for each in store.load(BOX, range(2000))[0]] == list(range(2, count + 1, 2))
        assert await commit(store, Delete(BOX, list(range(1, count + 1)))) is None
    await store.close()


async def test_the_log_is_copied_back_while_running(tmp_path: Path) -> None:
    """Without that the write-ahead log would grow as long as the broker runs."""
    store = SqliteStore(tmp_path)
    store.recover()
    await commit(store, PutEntity(1, "{}"))
    body = bytes(1_000_000)
    for seq in range(1, 121):
        assert (
            await commit(
                store, Insert(BOX, [StoredMessage(seq, body, n=seq)]), Delete(BOX, [seq - 1] if seq > 1 else [])
            )
            is None
        )
    assert (tmp_path / "messages.db-wal").stat().st_size < 48_000_000
    await store.close()
    assert not (tmp_path / "messages.db-wal").exists()


async def test_callback_after_a_group_in_flight_shares_its_fate(tmp_path: Path) -> None:
    """The result `None` means that all earlier writes are durable, and here they are not."""
    store = SqliteStore(tmp_path)
    store.recover()
    store.write(Insert(BOX, [sample_message(1), sample_message(1)]))
    await asyncio.sleep(0)  # the group goes to the writer; its result comes in a later turn of the loop
    assert isinstance(await commit(store), StoreError)
    assert await commit(store) is None
    await store.close()


async def test_one_faulty_callback_keeps_no_other_from_hearing(tmp_path: Path) -> None:
    """The fault is reported to the loop; the others wait for a commit that did happen."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    store = SqliteStore(tmp_path)
    store.recover()
    fault = ValueError("mine")

    def faulty(_: StoreError | None) -> None:
        raise fault

    store.write(PutEntity(1, "{}"))
    store.after_commit(faulty)
    assert await commit(store) is None
    assert reported == [fault]
    await store.close()


def test_the_switch_interval_is_short_only_while_someone_writes() -> None:
    """The switch interval belongs to the whole process, so it is borrowed and given back."""
    usual_s = sys.getswitchinterval()
    switching = PromptSwitching()
    switching.begin()
    switching.begin()
    switching.end()
    assert sys.getswitchinterval() < usual_s
    switching.end()
    assert sys.getswitchinterval() == pytest.approx(usual_s)


async def test_messages_of_a_loop_given_at_construction_are_stored(tmp_path: Path) -> None:
    """The broker passes its loop; a store opened before the loop runs must work with it."""
    store = SqliteStore(tmp_path / "a" / "b", loop=asyncio.get_running_loop())
    store.recover()
    await commit(store, PutEntity(1, "{}"), Insert(BOX, [sample_message(9)]))
    assert [fields(each) for each in store.load(BOX, [9])[0]] == [fields(sample_message(9))]
    await store.close()


async def test_large_group_is_committed_before_the_turn_ends(tmp_path: Path) -> None:
    """A loop that reads for milliseconds must not keep the writer waiting; order and callbacks stay as they were."""
    store = SqliteStore(tmp_path)
    store.recover()
    told: list[str] = []
    all_told = asyncio.get_running_loop().create_future()
    store.write(PutEntity(1, "{}"))
    for first in range(1, 1001, 250):
        store.write(Remember(1, [(f"id{first}", 10)]))
        store.write(Insert(box_of(1), [StoredMessage(seq, b"x", n=seq) for seq in range(first, first + 250)]))
        store.after_commit(lambda error, first=first: told.append(f"{first} {error}"))  # type: ignore[misc]
    store.write(Delete(box_of(1), list(range(1, 1000))))
    store.after_commit(lambda error: all_told.set_result(error))
    assert await asyncio.wait_for(all_told, 10) is None
    assert told == ["1 None", "251 None", "501 None", "751 None"]
    assert [message.seq for message in store.load(BOX, range(1001))[0]] == [1000]
    await store.close()


def test_shared_bodies_are_read_once_and_kept_within_bounds(tmp_path: Path) -> None:
    """Subscriptions ask for the same ones at about the same time; a payload that is gone is still theirs."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE payloads (id INTEGER PRIMARY KEY, topic INTEGER, crc INTEGER, body BLOB)")
    body = bytes(KEPT_BYTES_MAX // 4)
    for number in range(1, 7):
        row = (number, 7, payload_crc(number, 7, body), body)
        connection.execute("INSERT INTO payloads VALUES (?, ?, ?, ?)", row)
    bodies = SharedBodies(connection, tmp_path)
    first, _ = bodies.find({1, 2}, UNLIMITED)
    connection.execute("DELETE FROM payloads WHERE id = 2")
    assert bodies.find({2, 9}, UNLIMITED)[0][2] is first[2]
    bodies.find({3, 4, 5, 6}, UNLIMITED)
    assert (list(bodies._kept), bodies._kept_bytes) == ([3, 4, 5, 6], KEPT_BYTES_MAX)
    connection.close()
