"""Following an entity for `pairbus message tail`, by repeated looks."""

from __future__ import annotations

import asyncio

from pairbus.cli.message_output import Output
from pairbus.explorer import Address, Choice, described, extent, sequence_number_of, walk
from pairbus.explorer.calls import RetryPatience
from pairbus.transport import Carrier


async def follow(
    carrier: Carrier, address: Address, choice: Choice, printed: Output, before: int, every_s: float
) -> None:
    """Print messages as they come, for ever; the first are `before` numbers below the last one.

    A namespace that was reached once and is away is tried again, as long as the patience of the explorer lasts.
    """
    patience = RetryPatience()
    found = await extent(carrier, address)
    patience.succeeded()
    first = 0 if found is None else max(found[1] - before + 1, 0)
    while True:
        async for page in walk(carrier, address, first=first, session=choice.session, patience=patience):
            printed.add([described(payload) for payload in page if choice.takes(payload)])
            first = (sequence_number_of(page[-1]) or first) + 1
        await asyncio.sleep(every_s)
