"""The bound of a folder: what goes, what stays, and that the bill stays whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.ledger import Ledger, room
from pairbus.ledger.room import sums_of
from pairbus.ledger.rows import encode, lost_settlements, removed_files
from tests.ledger.world import CHILD_S, FLUSH_S, HOST, NOON_S, Clock, rows_of, send

FILE = 4096
FOLDER = 5 * FILE
DAY_S = 86_400.0


def filled(folder: Path, seconds: int, client: str = "c", begin_s: float = NOON_S, **options: int) -> Ledger:
    """A ledger that has written a row of a few hundred bytes for each of so many seconds."""
    clock = Clock(begin_s)
    ledger = Ledger(folder, client=client, clock=clock, max_file_bytes=FILE, **options)
    for _ in range(seconds):
        send(ledger, size_bytes=70_000)
        clock.now_s += 1
        assert ledger.flush(FLUSH_S)
    return ledger


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_folder_keeps_its_bound_and_the_bill_stays_whole(tmp_path: Path) -> None:
    """The oldest rows go; what they would have been billed is told by rows that stay."""
    ledger = filled(tmp_path, 300, max_folder_bytes=FOLDER)
    assert ledger.close(FLUSH_S)
    assert FOLDER - FILE < size_of(tmp_path) <= FOLDER + FILE
    rows = rows_of(tmp_path)
    lost = [row for row in rows if row.kind == "lost rows"]
    kept = [row for row in rows if row.kind == "send"]
    assert sum(row.billable_operations or 0 for row in rows) == 2 * 300
    assert sum(row.bytes or 0 for row in rows) == 70_000 * 300
    assert sum(row.rows or 0 for row in lost) + len(kept) == 300
    assert kept[-1].at_s == NOON_S + 299
    assert lost[-1].details is not None and lost[-1].details["files"] > 0
    assert min(row.since or "" for row in lost) == "2026-03-01T12:00:00.000Z"


def test_files_of_processes_that_ended_go_first_when_they_are_older(tmp_path: Path) -> None:
    """A service that is restarted every night must not fill the disk in a year."""
    for day in range(4):
        assert filled(tmp_path, 40, f"run{day}", NOON_S + day * DAY_S, max_folder_bytes=FOLDER).close(FLUSH_S)
    assert size_of(tmp_path) <= FOLDER + FILE
    assert {path.name[:10] for path in tmp_path.iterdir()} == {"2026-03-03", "2026-03-04"}
    assert sum(row.count or 0 for row in rows_of(tmp_path)) == 4 * 40


WRITER = f"""
import sys
from pairbus.ledger import Ledger
from pairbus.ledger.rows import encode, removed_files
now = [{NOON_S} - {DAY_S}]
ledger = Ledger(sys.argv[1], client="other", clock=lambda: now[0], max_file_bytes={FILE})
for _ in range(100):
    ledger.meter("primary", "host", "orders", "send", 100)
    now[0] += 1
    ledger.flush(10)
print("written", flush=True)
sys.stdin.read()
"""


def test_no_file_of_a_process_that_runs_is_removed(tmp_path: Path) -> None:
    """Older than ours, and more than the bound: they are the other's to remove, until it has ended."""
    other = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None and other.stdout is not None
    try:
        assert other.stdout.readline() == "written\n"
        theirs = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
        assert sum(theirs.values()) > FOLDER
        ledger = filled(tmp_path, 100, max_folder_bytes=FOLDER)
        assert {name: (tmp_path / name).stat().st_size for name in theirs} == theirs
    finally:
        other.stdin.close()
        other.wait(CHILD_S)
        other.stdout.close()
    assert ledger.close(FLUSH_S)
    assert filled(tmp_path, 40, "later", max_folder_bytes=FOLDER).close(FLUSH_S)
    assert len(theirs.keys() & {path.name for path in tmp_path.iterdir()}) < len(theirs)
    assert size_of(tmp_path) <= FOLDER + FILE
    assert sum(row.count or 0 for row in rows_of(tmp_path)) == 100 + 100 + 40


def test_sums_of_removed_files_keep_their_names(tmp_path: Path) -> None:
    """A table that has the rows of a file must be able to tell which sums it has already; the file in which the sums
    were noted first may be removed as well."""
    ledger = filled(tmp_path, 1000, max_folder_bytes=FOLDER)
    assert ledger.close(FLUSH_S)
    lost = [row for row in rows_of(tmp_path) if row.kind == "lost rows"]
    named = [item for row in lost for item in removed_files(row.details).items()]
    names = dict(named)
    assert len(names) == len(named)
    assert not names.keys() & {path.name for path in tmp_path.iterdir()}
    assert sum(sums.rows for sums in names.values()) == sum(row.rows or 0 for row in lost)
    assert sum(sums.billable_operations for sums in names.values()) == sum(row.billable_operations or 0 for row in lost)
    assert len(names) > len(lost)
    assert max(len(encode(row)) for row in lost) < FILE


def test_sums_leave_a_torn_last_line_out(tmp_path: Path) -> None:
    """After a failed write the whole row is in the next file: it would be billed twice. A table that has all whole
    lines of the file has all of it."""
    assert filled(tmp_path, 2).close(FLUSH_S)
    [file] = tmp_path.iterdir()
    whole = sums_of(file, 10)
    first, *_ = file.read_bytes().splitlines(keepends=True)
    with file.open("ab") as out:
        out.write(first[:-2])
    assert sums_of(file, 10) == whole
    file.write_bytes(first[:-1])
    assert not sums_of(file, 10).files


def test_sums_tell_settlements_apart(tmp_path: Path) -> None:
    """Not every way of counting bills them. They are told also when the file that told them first is removed."""
    clock = Clock()
    ledger = Ledger(tmp_path, client="c", clock=clock, max_file_bytes=FILE, max_folder_bytes=2 * FILE)
    for _ in range(300):
        send(ledger)
        ledger.meter("primary", HOST, "orders", "complete", 0, 3)
        clock.now_s += 1
        assert ledger.flush(FLUSH_S)
    assert ledger.close(FLUSH_S)
    rows = rows_of(tmp_path)
    lost = [row for row in rows if row.kind == "lost rows"]
    kept = sum(row.billable_operations or 0 for row in rows if row.kind == "complete")
    assert sum(lost_settlements(row.details) for row in lost) + kept == 900
    for row in lost:
        files = removed_files(row.details).values()
        assert lost_settlements(row.details) == sum(sums.settlements for sums in files) > 0
        assert all(sums.settlements <= sums.billable_operations for sums in files)


def test_removed_files_without_settlements_are_read() -> None:
    """Rows that name removed files had five numbers for each file at first."""
    [sums] = removed_files({"files": 1, "removed": {"a": [900, 5, 4, 3, 2]}}).values()
    assert (sums.bytes, sums.settlements) == (2, 0)


def test_names_of_removed_files_have_a_bound(tmp_path: Path) -> None:
    """The names of all files that ever were would fill the folder: the oldest are given up, their sums are not."""
    ledger = filled(tmp_path, 1000, max_folder_bytes=2 * FILE)
    assert ledger.close(FLUSH_S)
    rows = rows_of(tmp_path)
    assert sum(row.count or 0 for row in rows) == 1000
    assert sum(len(removed_files(row.details)) for row in rows) < 10


MAKER = """
import sys
from pathlib import Path
from pairbus.ledger.room import make_room
folder, run = Path(sys.argv[1]), sys.argv[2]
keep = folder / f"2026-03-02-{run}-0.jsonl"
keep.touch()
print("ready", flush=True)
sys.stdin.readline()
print(sum(one.counted for one in make_room(folder, 4096, run, keep).files.values()))
"""


def test_a_file_that_two_processes_want_to_remove_is_counted_once(tmp_path: Path) -> None:
    """All processes of a service begin the file of a new day in the same second, at midnight UTC. Each finds the same
    oldest file, and takes a moment to read it; only one deletes it, and only that one may count it."""
    assert filled(tmp_path, 1, "old", NOON_S).close(FLUSH_S)
    [old] = tmp_path.iterdir()
    old.write_bytes(old.read_bytes() * 20_000)
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, str(tmp_path), f"{name}-2-{2 * name}{6 * name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "bc"
    ]
    for maker in makers:
        assert maker.stdout is not None and maker.stdout.readline() == "ready\n"
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("go\n")
        maker.stdin.flush()
    counts = [int(maker.communicate(timeout=CHILD_S)[0]) for maker in makers]
    assert not old.exists()
    assert sum(counts) == 20_000, counts


def test_files_that_another_process_removed_make_room_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes list the folder, and both want to remove its two oldest files: the others stay."""
    for day in range(1, 6):
        (tmp_path / f"2026-03-0{day}-c-1-aaaaaaaa-{day}.jsonl").write_bytes(b"x" * 999 + b"\n")
    list_files = room._files

    def listed(folder: Path) -> list[room._File]:
        files = list_files(folder)
        for day in (1, 2):
            (tmp_path / f"2026-03-0{day}-c-1-aaaaaaaa-{day}.jsonl").unlink()
        return files

    monkeypatch.setattr(room, "_files", listed)
    assert not room.make_room(tmp_path, 3000, "other", tmp_path / "kept").files
    assert len(list(tmp_path.iterdir())) == 3


def test_what_is_not_a_ledger_stays_and_does_not_count(tmp_path: Path) -> None:
    """Compacted days, notes, anything else that somebody keeps beside it."""
    (tmp_path / "days.parquet").write_bytes(b"x" * FOLDER * 2)
    (tmp_path / "notes.jsonl").write_bytes(b"x" * FOLDER)
    ledger = filled(tmp_path, 10, max_folder_bytes=FOLDER)
    assert ledger.close(FLUSH_S)
    assert len(list(tmp_path.iterdir())) == 3
