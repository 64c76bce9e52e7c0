"""Memory that the broker no longer needs goes back to the machine, while there is nothing else to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pairbus.broker.machine_memory import BUSY_S, IDLE_SHARE, PERIOD_S, MemoryReturn, _trimmer

BLOCK_BYTES = 16 << 10  # small enough for the heap, which a map of its own would not need
BLOCKS = 4_000


class Loop:
    """An event loop with one timer, which the test lets run."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []

    def call_later(self, wait_s: float, callback: Callable[[], None]) -> Any:
        assert wait_s == PERIOD_S
        self.timers.append(callback)
        return self

    def pass_period(self) -> None:
        self.timers.pop()()


def test_memory_goes_back_once_when_a_busy_broker_becomes_idle() -> None:
    """To give it back stands in the way of work, and costs time for nothing when there was no work."""
    loop, cpu_s, trims = Loop(), [0.0], list[float]()
    returning = MemoryReturn(loop, trim=lambda: trims.append(cpu_s[0]), cpu_s=lambda: cpu_s[0])  # type: ignore[arg-type]
    returning.start()
    loop.pass_period()
    assert trims == [], "nothing was done yet"
    for _ in range(3):
        cpu_s[0] += PERIOD_S / 2
        loop.pass_period()
    assert trims == [], "it is busy"
    cpu_s[0] += IDLE_SHARE * PERIOD_S / 2
    loop.pass_period()
    assert trims == cpu_s, "it is idle, and was busy"
    for _ in range(3):
        loop.pass_period()
    assert len(trims) == 1, "there is nothing more to give back"
    cpu_s[0] += BUSY_S * 2
    loop.pass_period()
    loop.pass_period()
    assert len(trims) == 2


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_free_memory_goes_back_to_the_system() -> None:
    """The allocator keeps what lies below a block that is in use: without this call it would stay with the process."""
    trim = _trimmer()
    if trim is None or not Path("/proc/self/statm").exists():
        pytest.skip("this C library does not give memory back by a call")
    blocks = [bytes(BLOCK_BYTES) for _ in range(BLOCKS)]
    blocks = [b"%d" % len(block) + block for block in blocks]  # written, so that each page is there
    last = blocks[-1]
    full = resident_bytes()
    blocks.clear()
    trim()
    assert full - resident_bytes() > BLOCK_BYTES * BLOCKS // 2
    assert last
