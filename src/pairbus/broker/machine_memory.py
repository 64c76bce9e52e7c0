"""Memory of the machine: how much this process may have, and how it gives back what it no longer needs."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CGROUP_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
UNKNOWN_BYTES = 8 << 30  # where the system does not tell
PERIOD_S = 5.0
BUSY_S = 0.5  # CPU time since memory was last given back that makes another look worth while
IDLE_SHARE = 0.05  # of one processor, over a period: below it the broker counts as idle


def usable_bytes() -> int:
    """Return the smallest of the machine's memory, its share for this container, and the limit of address space."""
    try:
        import resource  # only POSIX systems have it
    except ModuleNotFoundError:
        return UNKNOWN_BYTES
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        limits.append(limit)
    for path in CGROUP_FILES:
        with suppress(OSError, ValueError):  # no such file here, or the word "max"
            limits.append(int(path.read_text()))
    return min(limits)


def _trimmer() -> Callable[[], object] | None:
    """Return the function of the C library that returns free memory to the system; None: it has none (not glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    return None if trim is None else lambda: trim(0)


class MemoryReturn:
    """Returns free memory to the system when the broker was busy and now is idle.

    The allocator keeps what was freed: after a flood of large messages that would be memory for nothing. The call takes
    some milliseconds, during which the event loop stands still, hence not while there is work.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        trim: Callable[[], object] | None = None,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._loop = loop
        self._trim = trim or _trimmer()
        self._cpu_s = cpu_s
        self._trimmed_at = self._seen = cpu_s()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._trim is not None:
            self._timer = self._loop.call_later(PERIOD_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        assert self._trim is not None
        now = self._cpu_s()
        is_idle, self._seen = now - self._seen < IDLE_SHARE * PERIOD_S, now
        if is_idle and now - self._trimmed_at > BUSY_S:
            self._trim()
            self._trimmed_at = self._cpu_s()
        self._timer = self._loop.call_later(PERIOD_S, self._look)
