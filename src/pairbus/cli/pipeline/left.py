"""Messages that a draining command has left behind, found by peeking, which needs only the Listen claim."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

from pairbus.amqp.message import Message
from pairbus.pairing.policy import Kind
from pairbus.transport import Carrier, TransportError
from pairbus.transport.errors import failure_of

COUNT_MAX = 1000  # messages that are counted one by one
PAGE = 100
TIMEOUT_S = 3.0


class Left(NamedTuple):
    """Number of messages in the queues, locked ones included."""

    messages: int
    is_all: bool
    "False: there may be more."


NOTHING_LEFT = Left(0, is_all=True)


async def look(secondary: Carrier, paths: Iterable[str], meter: Callable[[str, int], None], within_s: float) -> Left:
    """Count the messages that are left; `meter` is told of each request: the path, and the bytes that came."""
    count = 0
    try:
        async with asyncio.timeout(within_s):
            for path in paths:
                try:
                    async for page in _pages(secondary, path):
                        meter(path, sum(map(len, page)))
                        count += len(page)
                        if count >= COUNT_MAX:
                            return Left(count, is_all=False)
                except TransportError as error:
                    if failure_of(error).kind is not Kind.NOT_FOUND:
                        return Left(count, is_all=False)
    except TimeoutError:
        return Left(count, is_all=False)
    return Left(count, is_all=True)


async def _pages(secondary: Carrier, path: str) -> AsyncIterator[list[bytes]]:
    management = await (await secondary.connection()).management(path, timeout_s=TIMEOUT_S)
    number = 0
    while True:
        page = await management.peek(number, PAGE, TIMEOUT_S)
        yield page
        if not page:
            return
        number = int((Message.decode(page[-1]).annotations or {})["x-opt-sequence-number"]) + 1
