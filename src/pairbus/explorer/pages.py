"""Peeks at messages, page by page. No message is locked, counted as delivered or removed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pairbus.amqp.types import Int, Long
from pairbus.errors import PairbusError
from pairbus.explorer.address import Address
from pairbus.explorer.calls import RetryPatience, explained, persevere
from pairbus.explorer.choice import Choice
from pairbus.explorer.message import sequence_number_of
from pairbus.explorer.progress import Progress
from pairbus.transport import Carrier, TransportError

PAGE = 250  # messages that the service gives at most
GALLOP = 256  # the first step in the search for the last number
PARTITIONED_FROM = 1 << 48
"Lowest sequence number of partitioned entities: the upper 16 bits are the partition, so numbers do not only grow."
NUMBER_MAX = (1 << 63) - 1


async def peek(
    carrier: Carrier,
    address: Address,
    from_sequence: int = 0,
    count: int = PAGE,
    *,
    session: str | None = None,
    bodies: bool = True,
) -> list[bytes]:
    """Return up to `count` messages from a sequence number on, encoded; fewer only when there are no more.

    `session`: only those of this session. Without `bodies` the service may leave them out.
    """
    payloads: list[bytes] = []
    while len(payloads) < count:
        page = await _page(
            carrier, address, from_sequence, min(count - len(payloads), PAGE), session=session, bodies=bodies
        )
        if not page:
            break
        payloads += page
        from_sequence = _after(page, from_sequence, address)
    return payloads


async def walk(
    carrier: Carrier,
    address: Address,
    *,
    first: int = 0,
    last: int | None = None,
    session: str | None = None,
    bodies: bool = True,
    patience: RetryPatience | None = None,
) -> AsyncIterator[list[bytes]]:
    """Yield all messages, page by page, in the order of their numbers; a page is never empty.

    Lost connections are opened again. Messages that arrive meanwhile are included, unless their number is above `last`.
    `patience`: that of a caller who walks again and again, and has reached the namespace before.
    """
    patience = patience or RetryPatience()
    while last is None or first <= last:
        page = await _page(carrier, address, first, PAGE, session=session, bodies=bodies, patience=patience)
        if not page:
            return
        first = _after(page, first, address)
        if last is not None and first > last:
            page = [payload for payload in page if (sequence_number_of(payload) or 0) <= last]
            if not page:
                return
        yield page


async def search(
    carrier: Carrier,
    address: Address,
    choice: Choice,
    *,
    limit: int | None = None,
    bodies: bool = True,
    progress: Progress | None = None,
) -> AsyncIterator[list[bytes]]:
    """Yield the chosen messages as they are found, at most `limit` of them, by a walk over the range of the choice."""
    progress = progress or Progress()
    left = NUMBER_MAX if limit is None else limit
    numbers = choice.numbers
    first = max(choice.first, min(numbers, default=0)) if numbers is not None else choice.first
    last = choice.last if numbers is None else min(max(numbers, default=-1), choice.last or NUMBER_MAX)
    pages = walk(carrier, address, first=first, last=last, session=choice.session, bodies=bodies or choice.needs_bodies)
    async for page in pages:
        chosen = [payload for payload in page if choice.takes(payload)][:left]
        left -= len(chosen)
        progress.step(done=len(chosen), passed=len(page) - len(chosen))
        if chosen:
            yield chosen
        if not left:
            return


async def extent(carrier: Carrier, address: Address, session: str | None = None) -> tuple[int, int] | None:
    """Return the lowest and the highest sequence number; None when there is no message.

    The service has no call for the highest. Steps that double from the lowest on find a number that is too high;
    halving the last step then finds the highest. Partitioned entities have no such order: any number counts as within.
    """

    async def first_from(number: int) -> int | None:
        payloads = await peek(carrier, address, number, 1, session=session, bodies=False)
        return sequence_number_of(payloads[0]) if payloads else None

    lowest = await first_from(0)
    if lowest is None:
        return None
    if lowest >= PARTITIONED_FROM:
        return lowest, NUMBER_MAX
    low, high, step = lowest, NUMBER_MAX, GALLOP
    while low < high:
        number_found = await first_from(min(low + step, high))
        if number_found is None:
            high = min(low + step, high) - 1
            break
        low, step = number_found, 2 * step
    while low < high:
        middle = (low + high + 1) // 2
        number_found = await first_from(middle)
        if number_found is None:
            high = middle - 1
        else:
            low = number_found
    return lowest, low


async def _page(
    carrier: Carrier,
    address: Address,
    number: int,
    count: int,
    *,
    session: str | None,
    bodies: bool,
    patience: RetryPatience | None = None,
) -> list[bytes]:
    body: dict[str, Any] = {"from-sequence-number": Long(number), "message-count": Int(count)}
    if session is not None:
        body["session-id"] = session
    if not bodies:
        body["omit-message-body"] = True

    async def once() -> list[bytes]:
        management = await carrier.management(address.path)
        answer = await management.request("peek-message", body)
        return [entry["message"] for entry in answer.get("messages", [])]

    try:
        return await (once() if patience is None else persevere(once, patience))
    except TransportError as error:
        raise explained(error, carrier, address.path) from error


def _after(page: list[bytes], first: int, address: Address) -> int:
    number = sequence_number_of(page[-1])
    if number is None or number < first:
        raise PairbusError(f"{address}: messages from {first} on were asked for, and {number} came")
    return number + 1
