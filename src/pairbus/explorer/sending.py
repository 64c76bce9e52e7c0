"""Sends many messages to one entity: in order, hundreds in flight, again after trouble that passes.

Law of this file. `accepted` counts from the first message on without a gap: all messages before it are certainly
stored, and all messages behind it may have to be sent again. At least once, never lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pairbus.explorer.calls import RetryPatience, explained, is_passing, uninterrupted
from pairbus.explorer.progress import Progress
from pairbus.transport import Carrier, TransportError

IN_FLIGHT_MAX = 256
IN_FLIGHT_BYTES_MAX = 16 << 20
SEND_TIMEOUT_S = 30.0
ANSWERS_S = 5.0  # wait for messages in flight after an error or a cancellation


@dataclass(slots=True)
class _Sent:
    payload: bytes
    answer: asyncio.Future[None]


class Pipeline:
    """A sender to one entity, for one task at a time."""

    def __init__(self, carrier: Carrier, path: str) -> None:
        self.accepted = 0
        self._carrier = carrier
        self._path = path
        self._flying: deque[_Sent] = deque()
        self._bytes = 0

    async def put(self, payload: bytes, patience: RetryPatience) -> None:
        """Begin to send a message; wait while too many are in flight. TransportError: it will not be accepted."""
        while self._flying and (len(self._flying) >= IN_FLIGHT_MAX or self._bytes + len(payload) > IN_FLIGHT_BYTES_MAX):
            await self._settle_first(patience)
        self._flying.append(_Sent(payload, await self._begin(payload, patience)))
        self._bytes += len(payload)

    async def flush(self, patience: RetryPatience) -> None:
        """Wait until all messages that were put are accepted."""
        while self._flying:
            await self._settle_first(patience)

    def take_answers(self) -> None:
        """Count the messages that were accepted meanwhile, without waiting."""
        while self._flying and self._flying[0].answer.done() and not self._flying[0].answer.cancelled():
            if self._flying[0].answer.exception() is not None:
                return
            self._pop()

    async def give_up(self, within_s: float) -> None:
        """Wait a moment for the answers to messages in flight, so that `accepted` is as high as possible."""
        answers = [sent.answer for sent in self._flying if not sent.answer.done()]
        if answers:
            await asyncio.wait(answers, timeout=within_s)
        self.take_answers()
        for sent in self._flying:
            sent.answer.cancel()
            if sent.answer.done() and not sent.answer.cancelled():
                sent.answer.exception()

    def _pop(self) -> None:
        self._bytes -= len(self._flying.popleft().payload)
        self.accepted += 1

    async def _begin(self, payload: bytes, patience: RetryPatience) -> asyncio.Future[None]:
        while True:
            try:
                sender = await self._carrier.sender(self._path)
                return sender.send_soon(payload, timeout_s=SEND_TIMEOUT_S)
            except TransportError as error:
                await patience.failed(error)

    async def _settle_first(self, patience: RetryPatience) -> None:
        first = self._flying[0]
        try:
            await asyncio.wait([first.answer])  # a caller that is cancelled calls `give_up`, which waits for the answer
            first.answer.result()
        except TransportError as error:
            if not is_passing(error):
                raise
            await patience.failed(error)
            await self._send_again(patience)
            return
        patience.succeeded()
        self._pop()

    async def _send_again(self, patience: RetryPatience) -> None:
        """Send all messages again that are not known to be accepted, in their order."""
        for sent in self._flying:
            if not sent.answer.done():
                sent.answer.cancel()
            elif not sent.answer.cancelled() and sent.answer.exception() is None:
                continue
            sent.answer = await self._begin(sent.payload, patience)


@asynccontextmanager
async def sending(carrier: Carrier, path: str, progress: Progress) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
    """Yield a function that puts a message into a pipeline; all are accepted when the `async with` is left.

    `progress.done`, at first 0, is the `accepted` of the pipeline, also after an error or a cancellation.
    """
    pipeline, patience = Pipeline(carrier, path), RetryPatience()

    async def put(payload: bytes) -> None:
        await pipeline.put(payload, patience)
        pipeline.take_answers()
        progress.step(done=pipeline.accepted - progress.done)

    try:
        yield put
        await pipeline.flush(patience)
    except TransportError as error:
        raise explained(error, carrier, path) from error
    finally:
        await uninterrupted(pipeline.give_up(ANSWERS_S))
        progress.step(done=pipeline.accepted - progress.done)
