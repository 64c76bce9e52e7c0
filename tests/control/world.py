"""A pair of namespaces, and programs with paired clients as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from azure.servicebus import ServiceBusMessage

from pairbus.host.control.places import pid_of, served
from pairbus.testing.broker_thread import BrokerThread, ServiceBusNamespace
from tests.backlog import put_diverted_sync
from tests.cli.command import Command

QUEUE = "orders"
NAME = "contoso"
BACKLOG = f"{NAME}/x-servicebus-transfer/0"
_numbers = count(1)


class Program:
    """A process of `tests.control.program`."""

    def __init__(self, flavour: str, primary: str, secondary: str, **options: Any) -> None:
        command = [sys.executable, "-m", "tests.control.program", flavour]
        self._process = subprocess.Popen(
            [*command, primary, secondary, NAME, QUEUE, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Program:
        assert self.hear() == "ready"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def do(self, line: str) -> str:
        """Give a line, and return the answer to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        return self.hear()

    def end(self) -> None:
        assert self.do("end") == "ended"
        assert self._process.wait(20) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def socket(self) -> Path:
        [path] = [path for path in served("client") if pid_of(path) == self.pid]
        return path


class World:
    """Two namespaces with one queue and one backlog queue, and the command line."""

    def __init__(self, broker: BrokerThread, command: Command) -> None:
        self._broker = broker
        self.command = command
        number = next(_numbers)
        self.primary = broker.add_namespace(f"home-{number}")
        self.secondary = broker.add_namespace(f"away-{number}")
        self.primary.create_queue(QUEUE)
        self.secondary.create_queue(BACKLOG)

    def program(self, flavour: str = "sync", **options: Any) -> Program:
        return Program(flavour, self.primary.connection_string, self.secondary.connection_string, **options)

    def divert(self, number: int) -> None:
        messages = [ServiceBusMessage(f"{one}") for one in range(number)]
        put_diverted_sync(self.secondary.connection_string, BACKLOG, QUEUE, messages)

    @property
    def ends(self) -> tuple[str, ...]:
        """The pair as options of a command."""
        both = self.primary.connection_string, self.secondary.connection_string
        return ("--primary", both[0], "--secondary", both[1], "--primary-name", NAME)

    @property
    def at_home(self) -> list[str]:
        return ids(self.primary, QUEUE)

    @property
    def in_backlog(self) -> int:
        return len(self.secondary.sent(BACKLOG))

    def close(self) -> None:
        self._broker.remove_namespace(self.primary.name)
        self._broker.remove_namespace(self.secondary.name)


def ids(namespace: ServiceBusNamespace, queue: str) -> list[str]:
    return [str(message.message_id) for message in namespace.sent(queue)]


def until(holds: Callable[[], object], what: str, within_s: float = 20.0) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)


def has_open(pid: int, inode: str) -> bool:
    """Tell whether a process has this socket open."""
    folder = f"/proc/{pid}/fd"
    return any(os.readlink(f"{folder}/{number}") == f"socket:[{inode}]" for number in os.listdir(folder))


def inode_of(path: Path) -> str:
    """Return the kernel's number of a listening socket; it remembers the name that the socket was bound to."""
    bound = str(path.with_name(f".{path.name}"))
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return next(words[6] for words in lines if words[-1] == bound and words[3] == "00010000")
