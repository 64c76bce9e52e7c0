"""Takes all messages out of a queue with our own client: thousands of messages in a second."""

from __future__ import annotations

import asyncio
import time

from pairbus.transport import ClientConnection, Refused
from tests.crash.messages import Found, found
from tests.history.events import Drained, Place
from tests.history.record import Recorder

PAGE = 200
DEAD_LETTERS = "/$DeadLetterQueue"


async def drain(connection: ClientConnection, queue: str, recorder: Recorder, *, within_s: float = 30.0) -> None:
    """Empty the queue into the recorder: scheduled, deferred, waiting and dead-lettered messages."""
    deadline = time.monotonic() + within_s
    main, dead = [await connection.management(path) for path in (queue, queue + DEAD_LETTERS)]
    while await main.peek(1, 1) or await dead.peek(1, 1):
        assert time.monotonic() < deadline, f"{queue} is not empty after {within_s} s"
        await _take_aside(connection, queue, recorder)
        for sub_queue, place in ((None, Place.QUEUE), ("dead-letter", Place.DEAD_LETTER)):
            receiver = await connection.receiver(queue, mode="receive-and-delete", sub_queue=sub_queue)  # type: ignore[arg-type]
            while batch := await receiver.receive(PAGE, timeout_s=0.3):
                for received in batch:
                    _record(recorder, queue, found(received.payload), place)
            await receiver.pause()
            while receiver.buffered:
                for received in await receiver.receive(PAGE, timeout_s=0):
                    _record(recorder, queue, found(received.payload), place)
                await receiver.pause()
            await receiver.close()


async def _take_aside(connection: ClientConnection, queue: str, recorder: Recorder) -> None:
    """Scheduled and deferred messages, which no receiver gets."""
    management = await connection.management(queue)
    seen: list[Found] = []
    next_number = 1
    while page := [found(payload) for payload in await management.peek(next_number, PAGE)]:
        seen += [each for each in page if each.state != "active"]
        next_number = page[-1].sequence_number + 1
    for each in [each for each in seen if each.state == "scheduled"]:
        try:
            await management.cancel([each.sequence_number])
        except Refused as refused:
            assert refused.condition == "com.microsoft:message-not-found", refused  # it is active by now
        else:
            _record(recorder, queue, each, Place.SCHEDULED)
    deferred = [each.sequence_number for each in seen if each.state == "deferred"]
    for at in range(0, len(deferred), PAGE):
        for message in await management.receive_deferred(deferred[at : at + PAGE], "receive-and-delete"):
            _record(recorder, queue, found(message.payload), Place.DEFERRED)
    await asyncio.sleep(0)


def _record(recorder: Recorder, queue: str, message: Found, place: Place) -> None:
    recorder.add(Drained(message.id, queue, message.sequence_number, message.digest, place))
