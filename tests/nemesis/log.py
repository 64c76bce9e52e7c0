"""Records of a process that may be killed at any moment: one JSON array a line, written before the process goes on.

SIGKILL does not lose what the operating system has; only a line that was being written may be torn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Log:
    """The file of one process, for any of its threads: a line is one write."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, *records: tuple[Any, ...]) -> None:
        """Write records, one line each."""
        os.write(self._descriptor, "".join(json.dumps(record) + "\n" for record in records).encode())


def read(file: Path) -> Iterator[list[Any]]:
    """Read the records of one process; a torn last line is none."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)
