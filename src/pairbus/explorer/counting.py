"""Counts the messages that a verb would take, for a question before it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from pairbus.explorer.address import Address
from pairbus.explorer.choice import Choice, state_of
from pairbus.explorer.pages import extent, walk
from pairbus.transport import Carrier

COUNT_S = 5.0  # a longer search is not waited for


@dataclass(frozen=True, slots=True)
class Count:
    messages: int
    "Chosen messages that a receiver could get."
    is_exact: bool
    "False when there may be more, because the search was not waited for."
    last: int | None
    "Highest sequence number; given to the verb, it leaves later messages alone. None: there is no message."
    others: int = 0
    "Chosen messages that are deferred or scheduled, which verbs leave alone."
    unevaluable: int = 0


async def count(carrier: Carrier, address: Address, choice: Choice, *, within_s: float = COUNT_S) -> Count:
    """Count chosen messages by looking at them, for a limited time."""
    ends = await extent(carrier, address)
    if ends is None:
        return Count(0, is_exact=True, last=None)
    last = ends[1] if choice.last is None else min(ends[1], choice.last)
    within = replace(choice, last=last)
    loop = asyncio.get_running_loop()
    until_s, messages, others, is_exact = loop.time() + within_s, 0, 0, True
    pages = walk(carrier, address, first=within.first, last=last, session=within.session, bodies=within.needs_bodies)
    async for payloads in pages:
        taken = [payload for payload in payloads if within.takes(payload)]
        active = sum(state_of(payload) == "active" for payload in taken)
        messages, others = messages + active, others + len(taken) - active
        if loop.time() > until_s:
            is_exact = False
            break
        await asyncio.sleep(0)
    return Count(messages, is_exact, last, others, within.unevaluable)
