"""Lists and cancels scheduled messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from pairbus.explorer.address import Address
from pairbus.explorer.calls import explained
from pairbus.explorer.choice import state_of
from pairbus.explorer.pages import walk
from pairbus.transport import Carrier, TransportError


async def scheduled(carrier: Carrier, address: Address) -> AsyncIterator[list[bytes]]:
    """Yield the scheduled messages of a queue. Scheduled messages of a topic cannot be peeked at."""
    async for page in walk(carrier, address):
        payloads = [payload for payload in page if state_of(payload) == "scheduled"]
        if payloads:
            yield payloads


async def cancel(carrier: Carrier, address: Address, numbers: Sequence[int]) -> None:
    """Cancel scheduled messages by their sequence numbers: they are deleted, either all or (with an error) none."""
    path = address.destination
    try:
        await (await carrier.management(path)).cancel(numbers)
    except TransportError as error:
        raise explained(error, carrier, path) from error
