"""CPU, memory and descriptors of a process, read from /proc. Linux only."""

import os
from contextlib import suppress
from pathlib import Path

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Return user and system time of all threads of `pid`, ended ones included, without children."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The command name may contain spaces and parentheses; field 3 follows its last parenthesis.
    fields = stat.rpartition(")")[2].split()
    user_ticks, system_ticks = int(fields[11]), int(fields[12])
    return (user_ticks + system_ticks) / CLOCK_TICKS_PER_S


def fine_cpu_seconds(pid: int) -> float:
    """Return CPU time to the nanosecond, for short pieces of work; threads that have ended are missing."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def rss_bytes(pid: int) -> int:
    """Return the resident memory of `pid`, pages shared with other processes included."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def open_fds(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def peak_rss_bytes(pid: int) -> int:
    """Return the peak of the resident memory of `pid`; 0 when the process has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    peak = status.partition("VmHWM:")[2].split()
    return int(peak[0]) * 1024 if peak else 0


def descendants(pid: int) -> list[int]:
    """Return `pid` and its running children, their children, and so on."""
    found, children = [], [pid]
    while children:
        found += children
        children = [child for parent in children for child in _children(parent)]
    return found


def _children(pid: int) -> list[int]:
    """Return the processes that the threads of `pid` have started; threads, and processes, may end meanwhile."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (thread / "children").read_text().split())
    return found
