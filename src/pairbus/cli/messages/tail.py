"""Follows an entity for `pairbus message tail`, by repeated looks."""

from __future__ import annotations

import asyncio

from pairbus.cli.messages.output import Output
from pairbus.errors import ConfigError
from pairbus.explorer import Address, Choice, described, extent, sequence_number_of, walk
from pairbus.explorer.calls import RetryPatience
from pairbus.explorer.pages import PARTITIONED_FROM
from pairbus.transport import Carrier


async def follow(
    carrier: Carrier, address: Address, choice: Choice, printed: Output, before: int, every_s: float
) -> None:
    """Print messages as they come, for ever; the first are `before` numbers below the last one.

    A namespace that was reached once and is away is tried again, as long as the patience of the explorer lasts.
    """
    patience = RetryPatience()
    bounds = await extent(carrier, address)
    patience.succeeded()
    first = 0
    if bounds is not None:
        _check_order(address, bounds[0])
        first = max(bounds[1] - before + 1, 0)
    while True:
        async for page in walk(carrier, address, first=first, session=choice.session, patience=patience):
            _check_order(address, sequence_number_of(page[-1]) or 0)
            printed.add([described(payload) for payload in page if choice.takes(payload)])
            first = (sequence_number_of(page[-1]) or first) + 1
        await asyncio.sleep(every_s)


def _check_order(address: Address, number: int) -> None:
    """Raise ConfigError for a partitioned entity: a new message may have a lower number than those before it."""
    if number >= PARTITIONED_FROM:
        raise ConfigError(
            f"{address} is partitioned: its sequence numbers are in no order, so that new messages cannot be followed."
            " `pairbus message peek` shows all messages"
        )
