"""The brokers that are measured, behind one interface: starting, making queues, work for the load client, CPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tools.rabbitmq import PASSWORD, USER, RabbitMQ

from bench.load import Work
from bench.procstat import cpu_seconds
from pairbus.cli.admin.admin_client import administration

RESULTS = Path(__file__).parent / "results"
"Folder that git ignores, on the disk of the checkout: the system's folder for temporary files may be in memory."


class Measured(Protocol):
    """Interface of a broker for the benchmarks."""

    name: str

    def make_queue(self, name: str) -> None: ...
    def work(self, kind: str, queue: str, count: int) -> Work: ...
    def cpu_seconds(self) -> float: ...


class PairbusBroker:
    """A real `pairbus broker` process on a real disk."""

    def __init__(
        self,
        folder: Path | None = None,
        namespaces: Sequence[str] = ("bench",),
        *,
        name: str = "pairbus",
        options: Sequence[str] = (),
        source: Path | None = None,
    ) -> None:
        """Prepare a broker; `source` is the folder of another `pairbus` package, which runs instead of this one."""
        self.name = name
        self._options = options
        self._environment = None if source is None else os.environ | {"PYTHONPATH": str(source)}
        self._scratch = folder is None
        if folder is None:
            RESULTS.mkdir(exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="data-", dir=RESULTS))
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._namespaces = namespaces
        self.connection_strings: dict[str, str] = {}
        self.ready_s = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._scratch:
            shutil.rmtree(self.folder)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def connection_string(self) -> str:
        """Connection string of the first namespace."""
        return self.connection_strings[self._namespaces[0]]

    def start(self) -> None:
        began = time.perf_counter()
        command = [sys.executable, "-m", "pairbus", "broker", "--data", str(self.folder)]
        for name in self._namespaces:
            command += ["--namespace", f"{name}=0"]
        self._process = subprocess.Popen(
            [*command, *self._options], stdout=subprocess.PIPE, text=True, env=self._environment
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if match := re.match(r"(\S+) (Endpoint=\S+)", line):
                self.connection_strings[match.group(1)] = match.group(2)
            if line.strip() == "ready":
                self.ready_s = time.perf_counter() - began
                return
        raise RuntimeError(f"the broker ended with {self._process.wait()} before it was ready")

    def run_once(self) -> None:
        """Start and stop the broker, so that the data folder has the entities that the options name."""
        self.start()
        self.stop()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def make_queue(self, name: str, namespace: str | None = None) -> None:
        connection_string = self.connection_strings[namespace or self._namespaces[0]]
        subprocess.run(
            [sys.executable, "-m", "pairbus", "queue", "create", name, "--max-size-mb", "20480"],
            check=True,
            env={"PAIRBUS_CONNECTION_STRING": connection_string, "PATH": ""},
            stdout=subprocess.DEVNULL,
        )

    def make_queues(self, names: Iterable[str], namespace: str | None = None) -> None:
        """Make many queues in this process."""
        with administration(self.connection_strings[namespace or self._namespaces[0]]) as client:
            for name in names:
                client.create_queue(name, max_size_in_megabytes=20480)

    def work(self, kind: str, queue: str, count: int) -> Work:
        return Work(kind, queue, count, connection_string=self.connection_string)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)


class RabbitMQBroker:
    """Debian's rabbitmq-server: a quorum queue behind the AMQP 1.0 plugin."""

    name = "rabbitmq"

    def __init__(self, node: RabbitMQ) -> None:
        self._node = node

    def make_queue(self, name: str) -> None:
        self._node.declare_quorum_queue(name)

    def work(self, kind: str, queue: str, count: int) -> Work:
        address = self._node.address(queue)
        return Work(kind, address, count, host=self._node.host, port=self._node.port, user=USER, password=PASSWORD)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._node.pid)
