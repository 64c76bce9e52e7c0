"""Trouble of the disk never reaches callers, and the ledger tells how many rows are missing."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pairbus.ledger import Ledger, book, read
from pairbus.pairing.events import Diverted, Moved
from tests.ledger.world import FLUSH_S, NOON_S, Clock, ids_of, rows_of, run_child, send

FILL = book.PENDING_ROWS_MAX // 2 + 1  # rows of one event; the rows of a second event do not fit


def diverted(prefix: str, count: int) -> Diverted:
    return Diverted(
        "orders", "contoso/x-servicebus-transfer/0", count, tuple(f"{prefix}{n}" for n in range(count)), False
    )


def test_rows_wait_until_the_folder_can_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A flush of a broken disk answers at once, with False; one line in the log tells each change."""
    caplog.set_level(logging.WARNING, "pairbus.ledger")
    (tmp_path / "mount").write_text("a file where a folder should be")
    ledger = Ledger(tmp_path / "mount" / "ledger", client="c", clock=Clock())
    for _ in range(3):
        send(ledger)
        assert not ledger.flush(FLUSH_S)
    (tmp_path / "mount").unlink()
    assert ledger.close(FLUSH_S)
    assert sum(row.count or 0 for row in rows_of(tmp_path / "mount" / "ledger")) == 3
    told = [record.message for record in caplog.records]
    assert len(told) == 2 and "cannot be written" in told[0] and "written again" in told[1], told


def test_rows_dropped_during_a_disk_failure_are_reported_later(tmp_path: Path) -> None:
    """The report says how many rows, since when, and what they would have been billed: the bill stays whole."""
    folder = tmp_path / "mount" / "ledger"
    (tmp_path / "mount").write_text("in the way")
    clock = Clock()
    ledger = Ledger(folder, client="c", clock=clock, flush_interval_s=3600)
    ledger.record(diverted("kept", FILL), NOON_S)
    ledger.record(diverted("lost", FILL), NOON_S + 5)
    for number in range(FILL):
        ledger.meter("primary", "contoso", f"entity{number}", "send", 200_000)
    ledger.meter("primary", "contoso", "orders", "complete", 0, 7)
    clock.now_s += 10  # all sums of that second are dropped together
    send(ledger)
    assert not ledger.flush(FLUSH_S)
    assert f"lost={2 * FILL + 1}" in repr(ledger)
    (tmp_path / "mount").unlink()
    assert ledger.close(FLUSH_S)
    rows = rows_of(folder)
    [lost] = [row for row in rows if row.kind == "lost rows"]
    assert (lost.rows, lost.since) == (2 * FILL + 1, "2026-03-01T12:00:05.000Z")
    assert (lost.count, lost.billable_operations, lost.bytes) == (FILL + 7, 4 * FILL + 7, 200_000 * FILL)
    assert lost.details == {"settlements": 7}, "not every way of counting bills them"
    assert sum(row.kind == "diverted" for row in rows) == FILL
    assert sum(row.count or 0 for row in rows) == FILL + 7 + 1


def test_a_folder_that_is_removed_under_us_is_made_again(tmp_path: Path) -> None:
    """A clean-up job must not silence the ledger for the life of the process."""
    folder = tmp_path / "ledger"
    ledger = Ledger(folder, client="c", clock=Clock())
    ledger.record(Moved("orders", "q", 1, ("a",)), NOON_S)
    assert ledger.flush(FLUSH_S)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    ledger.record(Moved("orders", "q", 1, ("b",)), NOON_S)
    assert ledger.close(FLUSH_S)
    assert ids_of(rows_of(folder)) == {"b": 1}


READ_ONLY = """
import os, sys
from pairbus.ledger import Ledger
from pathlib import Path
folder = Path(sys.argv[1])
folder.mkdir()
folder.chmod(0o500)
if os.getuid() == 0:  # a superuser may write everywhere
    os.chown(folder, 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
ledger = Ledger(folder, client="c")
for _ in range(5):
    ledger.meter("primary", "contoso", "orders", "send", 10)
assert not ledger.flush(10)
assert not list(folder.iterdir())
folder.chmod(0o700)
assert ledger.close(10)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="rights of a folder are known to Unix")
def test_a_read_only_folder_makes_rows_wait() -> None:
    """The rows are written when the folder is made writable."""
    with TemporaryDirectory() as name:  # a process without rights must be able to enter it, unlike pytest's folders
        Path(name).chmod(0o755)
        run_child(READ_ONLY, f"{name}/ledger")
        assert sum(row.count or 0 for row in rows_of(Path(name, "ledger"))) == 5


FULL = """
import resource, sys
from pairbus.ledger import Ledger
from pairbus.pairing.events import Moved
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
ledger = Ledger(sys.argv[1], client="c", clock=lambda: 1772366400.0, flush_interval_s=3600)
for start in range(0, 600, 200):
    ledger.record(Moved("orders", "q", 200, tuple(str(n) for n in range(start, start + 200))))
flushes = 0
while not ledger.flush(10) and flushes < 50:
    flushes += 1
print(flushes)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert ledger.close(10)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of a process are known to Unix")
def test_partial_write_loses_no_row_and_repeats_none(tmp_path: Path) -> None:
    """A full disk stops in the middle of a line. That line is torn, and is written again whole, in another file."""
    flushes = int(run_child(FULL, tmp_path, 10_000))
    assert flushes > 3
    rows = read(tmp_path)
    assert ids_of(rows) == {str(number): 1 for number in range(600)}
    assert rows.skipped == flushes
    for path in tmp_path.iterdir():
        alone = read(path)
        list(alone)
        assert alone.skipped == 0 or not path.read_bytes().endswith(b"\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of a process are known to Unix")
def test_a_disk_without_a_byte_left_is_not_littered(tmp_path: Path) -> None:
    """A retry every second for a night would leave thousands of empty files."""
    assert int(run_child(FULL, tmp_path, 0)) == 50
    assert len(list(tmp_path.iterdir())) == 1
    assert ids_of(rows_of(tmp_path)) == {str(number): 1 for number in range(600)}


def test_a_disk_that_hangs_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network disk may not come back from a write for minutes. Such a disk cannot be had here, so a write waits."""
    healed, hanging = threading.Event(), threading.Event()
    write = os.write

    def hang(file: int, data: bytes) -> int:
        hanging.set()
        assert healed.wait(FLUSH_S)
        return write(file, data)

    monkeypatch.setattr("pairbus.ledger.files.os.write", hang)
    ledger = Ledger(tmp_path, client="c", clock=Clock(), flush_interval_s=0.001)
    ledger.record(Moved("orders", "q", 1, ("a",)), NOON_S)
    assert hanging.wait(FLUSH_S)
    for _ in range(1000):
        send(ledger)
    ledger.record(Moved("orders", "q", 1, ("b",)), NOON_S)
    assert not ledger.flush(0.01)
    healed.set()
    assert ledger.close(FLUSH_S)
    rows = rows_of(tmp_path)
    assert ids_of(row for row in rows if row.kind == "moved") == {"a": 1, "b": 1}
    assert sum(row.count or 0 for row in rows) == 1000
