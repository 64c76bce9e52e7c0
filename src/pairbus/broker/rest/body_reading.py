"""The body of a request, read within limits of size, time and memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from pairbus.amqp.errors import MESSAGE_SIZE_EXCEEDED
from pairbus.broker.budget import Share
from pairbus.broker.refusal import ARGUMENT_ERROR, SERVER_BUSY, TIMEOUT, Refusal

BODY_WAIT_S = 60.0  # for the whole body: 256 KB at 4 KB a second, a message of 100 MB at 2 MB a second
ROOM_WAIT_S = 10.0  # for memory, while other requests have it


@asynccontextmanager
async def body_of(request: web.Request, size_max: int, share: Share) -> AsyncIterator[bytes]:
    """Read the body of a request. Its bytes count against the budget until the end of the block.

    Refusal: it is larger than `size_max`, compressed, too slow, or there is no memory for it.
    """
    if request.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refusal(ARGUMENT_ERROR, "The body of a request must not be compressed (Content-Encoding).")
    announced = request.content_length or 0
    if announced > size_max:
        raise _too_large(size_max)
    counted = 0
    try:
        await _room(share)
        share.take(announced)
        counted = announced
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_WAIT_S):
                async for part in request.content.iter_any():
                    size += len(part)
                    if size > size_max:
                        raise _too_large(size_max)
                    if size > counted:
                        await _room(share)
                        share.take(size - counted)
                        counted = size
                    parts.append(part)
        except TimeoutError:
            raise Refusal(TIMEOUT, f"The body did not arrive within {BODY_WAIT_S:.0f} seconds.") from None
        yield b"".join(parts)
    finally:
        share.give(counted)


def _too_large(size_max: int) -> Refusal:
    return Refusal(MESSAGE_SIZE_EXCEEDED, f"The body is larger than the {size_max} bytes allowed.")


async def _room(share: Share) -> None:
    """Wait until the share may take more."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + ROOM_WAIT_S
    while not share.may_take:
        if loop.time() >= ends:
            raise Refusal(SERVER_BUSY, "The broker has no memory for the body now; please try again.")
        await asyncio.sleep(0.05)
