"""A standalone Spark cluster on this machine: one master and its workers, each a process, on loopback only."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark

from pairbus.spark import find_java

START_S = 180.0  # a master takes three seconds; the rest is for a machine busy with other things
STOP_S = 20.0
LOOK_S = 0.2
HOST = "127.0.0.1"
DEFAULTS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    # The first tasks wait for all executors: otherwise the one that came first might do all of the work.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}


class Cluster:
    """Use it as a context manager: leaving it ends every process of it.

    `environment` is what the workers have, and so the executors that they start.
    """

    def __init__(self, folder: Path, *, workers: int, environment: Mapping[str, str]) -> None:
        self.master = ""
        self.events = folder / "events"
        self.logs = folder / "logs"
        self._work = folder / "work"
        self._conf = folder / "conf"
        self._workers = workers
        self._environment = environment
        self._processes: list[subprocess.Popen[bytes]] = []
        for path in (self.events, self.logs, self._work, self._conf):
            path.mkdir(parents=True)
        settings = DEFAULTS | {"spark.eventLog.dir": self.events.as_uri()}
        lines = [f"{name} {value}\n" for name, value in settings.items()]
        (self._conf / "spark-defaults.conf").write_text("".join(lines))

    @property
    def driver_environment(self) -> dict[str, str]:
        """Variables that give a driver the settings of this cluster."""
        return {"SPARK_CONF_DIR": str(self._conf), "SPARK_LOCAL_IP": HOST}

    def __enter__(self) -> Cluster:
        try:
            common = ["--host", HOST, "--port", "0", "--webui-port", "0"]
            log = self._start("master.Master", "master", common)
            self.master = self._read(log, r"Starting Spark master at (spark://\S+)")
            for number in range(self._workers):
                limits = ["--cores", "1", "--memory", "768m", "--work-dir", str(self._work / str(number))]
                self._start("worker.Worker", f"worker-{number}", [*common, *limits, self.master])
            for number in range(self._workers):
                self._read(self.logs / f"worker-{number}", r"(Successfully registered with master)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Workers first: one that has lost its master goes on looking for it."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        try:
            for process in reversed(self._processes):
                process.wait(STOP_S)
        finally:
            for process in self._processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def _start(self, name: str, log_name: str, arguments: list[str]) -> Path:
        log = self.logs / log_name
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PAIRBUS_", "SPARK_"))},
            **self._environment,
            **self.driver_environment,
            "JAVA_HOME": str(find_java().home),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        with log.open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [*command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
            )
        return log

    def _read(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            found = re.search(pattern, log.read_text(errors="replace"))
            if found:
                return found[1]
            time.sleep(LOOK_S)
        raise AssertionError(f"{log.name} did not say {pattern!r}:\n{log.read_text(errors='replace')[-4000:]}")

    # ── what happened ──

    def executors_that_worked_for_a_stream(self) -> set[str]:
        """Ids of those that have ended a task of a streaming query with success."""
        stages, executors = set(), set()
        for event in self._events():
            if event["Event"] == "SparkListenerStageSubmitted":
                if "sql.streaming.queryId" in (event.get("Properties") or {}):
                    stages.add(event["Stage Info"]["Stage ID"])
            elif event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in stages:
                if event["Task End Reason"]["Reason"] == "Success":
                    executors.add(event["Task Info"]["Executor ID"])
        return executors

    def _events(self) -> Iterator[dict[str, Any]]:
        for path in self.events.iterdir():
            if not path.name.startswith("."):
                yield from map(json.loads, path.read_text().splitlines())

    def kill_executor(self, worker: int) -> int:
        """SIGKILL to the executor of a worker and to its Python; how many processes there were."""
        found = [pid for pid in _pids() if _folder(pid).startswith(f"{self._work / str(worker)}/")]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        return len(found)

    def processes_at_work(self) -> list[str]:
        """Executors and their Python: those whose folder is a worker's. Empty within a while after a driver ended."""
        deadline = time.monotonic() + STOP_S
        while (found := [pid for pid in _pids() if _folder(pid).startswith(f"{self._work}/")]) and (
            time.monotonic() < deadline
        ):
            time.sleep(LOOK_S)
        return found


def _pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def _folder(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:  # the process has ended, or belongs to another user
        return ""
