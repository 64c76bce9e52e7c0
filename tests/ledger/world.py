"""Shared parts of the ledger's tests: a clock that is moved by hand, readers, and processes for drastic things."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pairbus.ledger import Ledger, Row, read

HOST = "contoso.servicebus.windows.net"
NOON_S = 1_772_366_400.0  # 2026-03-01T12:00:00Z
FLUSH_S = 10.0
CHILD_S = 30.0


class Clock:
    def __init__(self, now_s: float = NOON_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def send(ledger: Ledger, entity: str = "orders", size_bytes: int = 100, count: int = 1) -> None:
    ledger.meter("primary", HOST, entity, "send", size_bytes, count)


def rows_of(folder: Path) -> list[Row]:
    """Return all rows, and assert that none is torn."""
    rows = read(folder)
    found = list(rows)
    assert rows.skipped == 0
    return found


def ids_of(rows: Iterable[Row]) -> Counter[str | None]:
    return Counter(row.message_id for row in rows)


def run_child(script: str, *arguments: object) -> str:
    """Run a script in a process of its own, for limits, forks and kills; return its output. It must end well."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
