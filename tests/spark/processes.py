"""The processes of a Spark, found by their parents and their command lines, so that tests can kill some of them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE_RUNNER = "python_streaming_source_runner"


connect_server: int | None = None
"Process id of the Connect server, when the tests have one."


def java_of(spark: SparkSession) -> int:
    """Return the process id of a session's Java."""
    if connect_server is not None:
        return connect_server
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    return int(gateway.proc.pid)


def kill_workers(java: int) -> int:
    """SIGKILL to the processes in which tasks run; how many there were."""
    return _kill([pid for pid in _forked(java) if command_of(pid).rstrip("\0").endswith("pyspark.worker")])


def kill_source_runners(java: int) -> int:
    """SIGKILL to the processes in which stream readers say what the next batch is; how many there were."""
    return _kill([pid for pid in descendants(java) if SOURCE_RUNNER in command_of(pid)])


def _forked(java: int) -> list[int]:
    daemons = [pid for pid in descendants(java) if "pyspark.daemon" in command_of(pid)]
    return [pid for pid in daemons if parent_of(pid) in daemons]


def _kill(pids: list[int]) -> int:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def descendants(root: int) -> list[int]:
    parents = {pid: parent_of(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
