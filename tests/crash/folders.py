"""Data folders of a broker that has ended, to be damaged, and brokers that are started on them."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairbus.transport import ClientConnection, Receiver, Refused, Scheduled, connect
from tests.brokers import BrokerProcess
from tests.crash.draining import drain
from tests.crash.load import now_ms
from tests.crash.messages import digest_of, found, make
from tests.history.events import Drained, Place
from tests.history.record import Recorder
from tests.limits import slowness

QUEUE = "orders"
STORE = "contoso"
START_S = 20.0
Held = dict[str, tuple[str, Place]]
"Message id → (digest, where it is)."


@dataclass
class Image:
    """The data folder of a broker that was stopped or killed, and what it held then."""

    folder: Path
    held: Held = field(default_factory=dict)

    def copy(self, to: Path) -> Path:
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.folder, to, ignore=shutil.ignore_patterns("control.sock"))
        return to


async def fill(connection: ClientConnection, source: random.Random, numbers: range) -> Held:
    """Messages in every place."""
    held: Held = {}
    sender, management = await connection.sender(QUEUE), await connection.management(QUEUE)
    receiver = await connection.receiver(QUEUE, credit=8)
    for number in numbers:
        message_id = f"message-{number}"
        place = source.choice((Place.QUEUE, Place.QUEUE, Place.DEFERRED, Place.DEAD_LETTER, Place.SCHEDULED))
        due_ms = now_ms() + 3_600_000 if place is Place.SCHEDULED else 0
        payload = make(message_id, source, size=source.choice((0, 300, 1500, 30_000)), due_ms=due_ms)
        held[message_id] = (digest_of(payload), place)
        if place is Place.SCHEDULED:
            await management.schedule([Scheduled(message_id, payload)])
        else:
            await sender.send(payload)
        if place in (Place.DEFERRED, Place.DEAD_LETTER):
            await _put_aside(receiver, message_id, place)
    return held


async def _put_aside(receiver: Receiver, message_id: str, place: Place) -> None:
    """Waiting messages are locked by the same receiver meanwhile; they are free again after the restart."""
    while True:
        for received in await receiver.receive(8, timeout_s=10):
            if found(received.payload).id == message_id:
                if place is Place.DEFERRED:
                    await receiver.defer([received])
                else:
                    await receiver.dead_letter([received], "test")
                return


def make_images(stopped: Path, killed: Path, count: int = 30) -> tuple[Image, Image]:
    """The same content twice: all in the database after an orderly stop; and, killed, half in the database, half in
    the log."""
    held: Held = {}
    broker = BrokerProcess(killed / "data", namespaces=["contoso"])

    async def work(first: int) -> None:
        async with await connect(broker.connection_string()) as connection:
            held.update(await fill(connection, random.Random(f"content {first}"), range(first, first + count)))

    broker.start()
    try:
        with broker.admin() as admin:
            admin.create_queue(QUEUE, requires_duplicate_detection=True)
        asyncio.run(work(0))
        assert broker.terminate() == 0
        broker.start()
        asyncio.run(work(count))
    finally:
        broker.kill()
    shutil.copytree(killed / "data", stopped / "data", ignore=shutil.ignore_patterns("control.sock"))
    with BrokerProcess(stopped / "data", namespaces=["contoso"]) as last:
        assert last.terminate() == 0
    return Image(stopped / "data", held), Image(killed / "data", held)


def command_on(folder: Path) -> list[str]:
    return [sys.executable, "-m", "pairbus", "broker", "--namespace", "contoso=0", "--data", str(folder)]


@dataclass
class Ending:
    """End of a broker that was started on a folder, with the messages it served."""

    code: int
    "0 when it served and was then asked to stop; otherwise what it ended with by itself."
    said: str
    "On standard error."
    drained: list[Drained] = field(default_factory=list)


async def serve_and_drain(folder: Path, **options: Any) -> Ending:
    """Start a broker on the folder; if it gets ready, take everything out and stop it."""
    process = await asyncio.create_subprocess_exec(
        *command_on(folder), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )
    try:
        async with asyncio.timeout(START_S * slowness()):
            drained = await _drained_when_ready(process)
            if process.returncode is None and drained is not None:
                process.terminate()
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    # The folders of a test are deep, and the path of a Unix socket is short: a broker then says that it has none.
    lines = [line for line in said.decode().splitlines(keepends=True) if "the control socket cannot be" not in line]
    return Ending(process.returncode, "".join(lines), drained or [])


async def _drained_when_ready(process: asyncio.subprocess.Process) -> list[Drained] | None:
    assert process.stdout is not None
    connection_string = ""
    while (line := (await process.stdout.readline()).decode().strip()) != "ready":
        if not line:
            return None
        connection_string = line.partition(" ")[2]
    recorder = Recorder()
    async with await connect(connection_string) as connection:
        try:
            await drain(connection, QUEUE, recorder)
        except Refused as refused:
            if refused.condition != "amqp:not-found":  # a queue whose description is damaged is not served
                raise
    return [event for event in recorder.history() if isinstance(event, Drained)]


async def refusal_on(folder: Path, **options: Any) -> str:
    """Start a broker that must refuse the folder with exit code 1 and one line; return that line."""
    ending = await serve_and_drain(folder, **options)
    assert ending.code == 1, ending
    lines = ending.said.splitlines()
    assert len(lines) == 1, ending.said
    return lines[0]
