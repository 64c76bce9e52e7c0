"""Scheduled messages: which there are, and how they are cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from pairbus.explorer.address import Address
from pairbus.explorer.calls import explained
from pairbus.explorer.choice import state_of
from pairbus.explorer.pages import walk
from pairbus.transport import Carrier, TransportError


async def scheduled(carrier: Carrier, address: Address) -> AsyncIterator[list[bytes]]:
    """Yield the scheduled messages of a queue. A topic does not show its own: they cannot be peeked at."""
    async for page in walk(carrier, address):
        found = [payload for payload in page if state_of(payload) == "scheduled"]
        if found:
            yield found


async def cancel(carrier: Carrier, address: Address, numbers: Sequence[int]) -> None:
    """Cancel scheduled messages by their sequence numbers: they are deleted. All of them, or an error and none."""
    path = address.destination
    try:
        await (await carrier.management(path)).cancel(numbers)
    except TransportError as error:
        raise explained(error, carrier, path) from error
