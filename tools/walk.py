"""`python -m tools.walk`: lists the files that one call passes, in the order in which it first reaches them.

A reader who follows a message by "go to definition" opens these files. The call runs a second time before it is
listed, so that files which only open connections are left out. Three kinds of work that fall into the same moment are
left out as well, because the call does not pass them: the look at what falls due next (everything below `BACKGROUND`),
numbers for operators (`NUMBERS`), and the record of sends for assertions of tests, which is switched off.

    python -m tools.walk             every walk
    python -m tools.walk send home   only these
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from tests.brokers import BrokerProcess

import pairbus
from pairbus.aio import PairedServiceBusClient
from pairbus.amqp.message import Message, Properties
from pairbus.backlog.envelope import Envelope, wrap
from pairbus.pairing.rotation import queue_path
from pairbus.syphon import Syphon, SyphonSettings
from pairbus.testing import BrokerThread
from pairbus.transport import Carrier

SOURCES = Path(pairbus.__file__).parent
QUEUE = "orders"
BOOK = Message(properties=Properties(message_id="1"), data=[b"a book"])
BACKGROUND = {"Timetable._arm"}
"Functions that a loop calls by itself; what they call is no part of a walk."
NUMBERS = ("broker/monitoring/", "broker/store/commit_times.py", "telemetry/metrics/")


class Recorder:
    """Notes the files of Pairbus whose functions are called while it records, in the threads that it watches."""

    def __init__(self) -> None:
        self._files: dict[str, None] | None = None

    def watch(self) -> None:
        """Watch this thread, and all threads that are started from now on."""
        sys.setprofile(self._note)
        threading.setprofile(self._note)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if self._files is not None and event == "call" and not _is_background(frame):
            self._files.setdefault(frame.f_code.co_filename)

    async def record(self, call: Callable[[], Awaitable[object]]) -> list[str]:
        """Run a call; the files below `src/pairbus` that it passed."""
        self._files = {}
        try:
            await call()
            files = list(self._files)
        finally:
            self._files = None
        ours = [Path(file).relative_to(SOURCES).as_posix() for file in files if Path(file).is_relative_to(SOURCES)]
        return [file for file in ours if not file.startswith(NUMBERS)]


def _is_background(frame: FrameType | None) -> bool:
    """Return whether the frame is in work that a loop does by itself."""
    while frame is not None:
        if frame.f_code.co_qualname in BACKGROUND:
            return True
        frame = frame.f_back
    return False


async def walk_send() -> list[str]:
    """A healthy send of the paired client."""
    with _pair() as broker:
        places = broker.connection_string("contoso"), broker.connection_string("fabrikam")
        recorder = Recorder()
        recorder.watch()
        try:
            async with (
                PairedServiceBusClient.from_connection_strings(*places, backlog_queue_count=1) as client,
                client.get_queue_sender(QUEUE) as sender,
            ):
                await sender.send_messages(ServiceBusMessage("first"))
                return await recorder.record(lambda: sender.send_messages(ServiceBusMessage("second")))
        finally:
            recorder.stop()


async def walk_home() -> list[str]:
    """A message that a syphon brings home; files of the syphon and of the decisions about a backlog message."""
    with _pair() as broker:
        places = broker.connection_string("contoso"), broker.connection_string("fabrikam")
        backlog, diverted = queue_path("contoso", 0), wrap(BOOK.encode(), Envelope(QUEUE))
        with broker.admin("fabrikam") as admin:
            admin.create_queue(backlog)
        recorder = Recorder()
        recorder.watch()
        try:
            async with (
                Carrier(places[0]) as primary,
                Carrier(places[1]) as secondary,
                ServiceBusClient.from_connection_string(places[0]) as sdk,
                sdk.get_queue_receiver(QUEUE) as receiver,
            ):
                syphon = Syphon(
                    primary,
                    secondary,
                    [backlog],
                    settings=SyphonSettings(),
                    publish=lambda event: None,
                    meter=lambda *_: None,
                )
                running = asyncio.create_task(syphon.run())
                sender = await secondary.sender(backlog)

                async def bring_home() -> None:
                    await sender.send(diverted)
                    [message] = await receiver.receive_messages(max_wait_time=60)
                    await receiver.complete_message(message)

                await bring_home()
                files = await recorder.record(bring_home)
                await syphon.stop()
                await running
        finally:
            recorder.stop()
    return [file for file in files if file.startswith(("syphon/", "pairing/", "backlog/"))]


async def walk_broker_send() -> list[str]:
    """A send to a queue, in the broker."""
    return await _walk_in_broker(receives=False)


async def walk_broker_receive() -> list[str]:
    """A receive and a completion, in the broker."""
    return await _walk_in_broker(receives=True)


async def _walk_in_broker(*, receives: bool) -> list[str]:
    recorder = Recorder()
    recorder.watch()
    with tempfile.TemporaryDirectory() as folder:
        try:
            with BrokerThread(["contoso"], data=Path(folder), record_sends=False) as broker:
                sys.setprofile(None)  # the SDK's end of the wire runs in this thread
                broker.create_queue(QUEUE)
                place = broker.connection_string("contoso")
                async with ServiceBusClient.from_connection_string(place) as client:
                    sender, receiver = client.get_queue_sender(QUEUE), client.get_queue_receiver(QUEUE)

                    async def send() -> None:
                        await sender.send_messages(ServiceBusMessage("a book"))

                    async def receive() -> None:
                        [message] = await receiver.receive_messages(max_wait_time=60)
                        await receiver.complete_message(message)

                    async with sender, receiver:
                        await send()
                        await receive()
                        if not receives:
                            return await recorder.record(send)
                        await send()
                        return await recorder.record(receive)
        finally:
            recorder.stop()


@contextmanager
def _pair() -> Iterator[BrokerProcess]:
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder) / "data", namespaces=["contoso", "fabrikam"]) as broker,
        broker.admin("contoso") as admin,
    ):
        admin.create_queue(QUEUE)
        yield broker


WALKS: dict[str, Callable[[], Awaitable[list[str]]]] = {
    "send": walk_send,
    "home": walk_home,
    "broker-send": walk_broker_send,
    "broker-receive": walk_broker_receive,
}


async def main() -> int:
    unknown = set(sys.argv[1:]) - set(WALKS)
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(WALKS)}", file=sys.stderr)
        return 2
    for name in sys.argv[1:] or WALKS:
        files = await WALKS[name]()
        print(f"\n{name}: {len(files)} files. {(WALKS[name].__doc__ or '').strip()}")
        print(*(f"    {file}" for file in files), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
