"""The body of a request, read within limits of size, time and memory.

Memory, as for messages over AMQP: a body of which a part has come is in the account `unfinished`, and gives way when
others need the room and it stood still longest; a whole one is in `arriving` until its messages are committed, and
while that is full no further body is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from pairbus.amqp.errors import MESSAGE_SIZE_EXCEEDED
from pairbus.broker.budget import MemoryBudget, Share
from pairbus.broker.refusal import ARGUMENT_ERROR, SERVER_BUSY, TIMEOUT, Refusal

BODY_WAIT_S = 60.0  # for the whole body: 256 KB at 4 KB a second, a message of 100 MB at 2 MB a second
ROOM_WAIT_S = 10.0  # for memory, while other requests have it


class UnfinishedBody:
    """A body of which a part has come."""

    def __init__(self, budget: MemoryBudget, deadline: asyncio.Timeout) -> None:
        self.size = 0
        self.is_given_up = False
        self._shelf = budget.unfinished
        self._deadline = deadline

    def note(self, size: int) -> None:
        self.size = size
        self._shelf.note_size(self, size)

    def held_bytes(self) -> int:
        return self.size

    def give_up(self) -> None:
        """End the reading at once."""
        self.size = 0
        self.is_given_up = True
        self._deadline.reschedule(0)


@asynccontextmanager
async def body_of(request: web.Request, size_max: int, budget: MemoryBudget, arriving: Share) -> AsyncIterator[bytes]:
    """Read the body of a request. Its bytes count against the budget until the end of the block.

    Refusal: it is larger than `size_max`, compressed, too slow, or there is no memory for it.
    """
    if request.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refusal(ARGUMENT_ERROR, "The body of a request must not be compressed (Content-Encoding).")
    if (request.content_length or 0) > size_max:
        raise _too_large(size_max)
    await _room(arriving)
    body = await _read(request, size_max, budget)
    arriving.take(len(body))
    try:
        yield body
    finally:
        arriving.give(len(body))


async def _read(request: web.Request, size_max: int, budget: MemoryBudget) -> bytes:
    parts: list[bytes] = []
    deadline = asyncio.timeout(BODY_WAIT_S)
    unfinished = UnfinishedBody(budget, deadline)
    size = 0
    try:
        async with deadline:
            async for part in request.content.iter_any():
                size += len(part)
                if size > size_max:
                    raise _too_large(size_max)
                parts.append(part)
                unfinished.note(size)
    except TimeoutError:
        if unfinished.is_given_up:
            raise _no_memory() from None
        raise Refusal(TIMEOUT, f"The body did not arrive within {BODY_WAIT_S:.0f} seconds.") from None
    finally:
        unfinished.note(0)
    return b"".join(parts)


def _too_large(size_max: int) -> Refusal:
    return Refusal(MESSAGE_SIZE_EXCEEDED, f"The body is larger than the {size_max} bytes allowed.")


def _no_memory() -> Refusal:
    return Refusal(SERVER_BUSY, "The broker has no memory for the body now; please try again.")


async def _room(share: Share) -> None:
    """Wait until the share may take more."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + ROOM_WAIT_S
    while not share.may_take:
        if loop.time() >= ends:
            raise _no_memory()
        await asyncio.sleep(0.05)
