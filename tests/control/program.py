"""A program with a paired client and a control socket that does what its standard input says, line by line.

    python -m tests.control.program sync|aio PRIMARY SECONDARY PRIMARY_NAME QUEUE [OPTIONS AS JSON]

It says `ready` when it has paired, and answers each line with one: `send ID`, `fork`, `fork-and-send ID`, `spawn`,
`reap`, `end`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any

from azure.servicebus import ServiceBusMessage

import pairbus
import pairbus.aio


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


class Children:
    """Processes that this one started: they do nothing until they are told to end."""

    def __init__(self) -> None:
        self._pids: list[int] = []

    def fork(self) -> int:
        """Fork; the child waits for SIGTERM, or does what the caller of this function does when 0 is returned."""
        pid = os.fork()
        if pid:
            self._pids.append(pid)
        return pid

    def spawn(self) -> int:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
        self._pids.append(child.pid)
        return child.pid

    def reap(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
        self._pids.clear()


def wait_for_end() -> None:
    """End as a program does that is told to: with its exit handlers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.pause()


def run_sync(ends: tuple[str, str], queue: str, options: dict[str, Any]) -> None:
    children = Children()
    with pairbus.PairedServiceBusClient.from_connection_strings(*ends, **options) as client:
        sender = client.get_queue_sender(queue)
        say("ready")
        for line in sys.stdin:
            match line.split():
                case ["send", message_id]:
                    sender.send_messages(ServiceBusMessage("x", message_id=message_id), timeout=20)
                    say("sent")
                case ["fork"]:
                    if (pid := children.fork()) == 0:
                        wait_for_end()
                    say(str(pid))
                case ["fork-and-send", message_id]:
                    if (pid := children.fork()) == 0:
                        sender.send_messages(ServiceBusMessage("x", message_id=message_id), timeout=20)
                        say(f"sent by {os.getpid()}")
                        wait_for_end()
                case ["spawn"]:
                    say(str(children.spawn()))
                case ["reap"]:
                    children.reap()
                    say("reaped")
                case ["end"]:
                    break


async def run_aio(ends: tuple[str, str], queue: str, options: dict[str, Any]) -> None:
    async with pairbus.aio.PairedServiceBusClient.from_connection_strings(*ends, **options) as client:
        sender = client.get_queue_sender(queue)
        say("ready")
        while (line := await asyncio.to_thread(sys.stdin.readline)) and line.strip() != "end":
            await sender.send_messages(ServiceBusMessage("x", message_id=line.split()[1]), timeout=20)
            say("sent")


def main(flavour: str, primary: str, secondary: str, name: str, queue: str, more: str = "{}") -> None:
    options = {"primary_name": name, "backlog_queue_count": 1, "control_socket": True, **json.loads(more)}
    if flavour == "sync":
        run_sync((primary, secondary), queue, options)
    else:
        asyncio.run(run_aio((primary, secondary), queue, options))
    say("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
