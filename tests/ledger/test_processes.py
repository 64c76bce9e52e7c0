"""Forks, kills, and processes that end without closing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.ledger import read
from tests.ledger.world import CHILD_S, rows_of, run_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")

FORK = """
import os, sys
from pairbus.ledger import Ledger
ledger = Ledger(sys.argv[1], client="c", flush_interval_s=3600)
def send(entity, count):
    for _ in range(count):
        ledger.meter("primary", "contoso", entity, "send", 10)
send("before", 1)
if sys.argv[2] == "open":
    assert ledger.flush(10)   # the file is open when the fork comes
send("parent", 3)             # in memory only
child = os.fork()
if child == 0:
    send("child", 5)
    os._exit(0 if ledger.close(10) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
send("parent", 1)
assert ledger.close(10)
print(os.getpid(), child)
"""


@pytest.mark.parametrize("file", ["open", "not yet open"])
def test_after_a_fork_each_process_writes_its_own_rows_once(file: str, tmp_path: Path) -> None:
    """The child does not write rows that the parent has in memory, and the two share no file."""
    parent, child = map(int, run_child(FORK, tmp_path, file).split())
    rows = rows_of(tmp_path)
    sums: dict[tuple[int, str | None], int] = {}
    for row in rows:
        sums[row.pid, row.entity] = sums.get((row.pid, row.entity), 0) + (row.count or 0)
    assert sums == {(parent, "before"): 1, (parent, "parent"): 4, (child, "child"): 5}
    for path in tmp_path.iterdir():
        assert len({(row.pid, row.run) for row in read(path)}) == 1


FORK_IN_TRAFFIC = """
import os, sys, threading
from pairbus.ledger import Ledger
ledger = Ledger(sys.argv[1], client="c", flush_interval_s=0.001)
going = True
def traffic():
    while going:
        ledger.meter("primary", "contoso", "parent", "send", 10)
threads = [threading.Thread(target=traffic) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        ledger.meter("primary", "contoso", "child", "send", 10)
        os._exit(0 if ledger.close(10) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
going = False
for thread in threads:
    thread.join()
assert ledger.close(10)
"""


@pytest.mark.timed  # the lock of the tracer is not made anew in a child
def test_a_fork_in_the_middle_of_traffic_does_not_hang_the_child(tmp_path: Path) -> None:
    """The lock may be held, and the file half written, by threads that the child does not have."""
    run_child(FORK_IN_TRAFFIC, tmp_path)
    assert sum(row.count or 0 for row in rows_of(tmp_path) if row.entity == "child") == 20


KILLED = """
import sys
from pairbus.ledger import Ledger
from pairbus.pairing.events import Moved
ledger = Ledger(sys.argv[1], client="c", flush_interval_s=0.001)
number = 0
while True:
    ledger.record(Moved("orders", "q", 50, tuple(str(n) for n in range(number, number + 50))))
    number += 50
    if ledger.flush(10):
        print(number, flush=True)
"""


def test_after_a_kill_everything_that_was_flushed_is_there(tmp_path: Path) -> None:
    """At most one line is incomplete."""
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 2000:
                process.send_signal(signal.SIGKILL)
                break
        flushed = int([line, *process.stdout.read().split()][-1])
        process.wait(CHILD_S)
    rows = read(tmp_path)
    ids = [int(row.message_id or -1) for row in rows]
    assert ids == list(range(len(ids))) and len(ids) >= flushed >= 2000
    assert rows.skipped <= 1


FORGOTTEN = """
import sys
from pairbus.ledger import Ledger
Ledger(sys.argv[1], client="c", flush_interval_s=3600).meter("primary", "contoso", "orders", "send", 10)
"""


def test_a_process_that_forgets_to_close_still_writes_its_last_second(tmp_path: Path) -> None:
    """The end of a script is the commonest end of all."""
    run_child(FORGOTTEN, tmp_path)
    assert [row.count for row in rows_of(tmp_path)] == [1]
