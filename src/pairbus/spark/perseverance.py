"""Calls to the service that are retried while that makes sense, and errors that tell a Spark user what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pairbus.errors import ConfigError, EntityNotFound, PairbusError
from pairbus.pairing.policy import BUSY_WAIT_S, Kind
from pairbus.spark.options import Options
from pairbus.transport import TransportError
from pairbus.transport.errors import failure_of

PAUSE_MIN_S, PAUSE_MAX_S = 0.5, 10.0
# Failures that may pass. All others mean a wrong entity, key or message.
_PASSING = frozenset({Kind.COMMUNICATION, Kind.TIMEOUT, Kind.INTERNAL, Kind.FULL})

T = TypeVar("T")


async def persevere(call: Callable[[], Awaitable[T]], options: Options, entity: str, patience_s: float) -> T:
    """Call until it succeeds, fails for good, or `patience_s` is over; the error then names entity and option.

    Server-busy waits at least ten seconds, as the service asks, and as long as the option patienceSeconds allows.
    `call` must be harmless to repeat: a peek, an attach, a send of messages that keep their ids.
    """
    loop = asyncio.get_running_loop()
    began, pause_s = loop.time(), PAUSE_MIN_S
    while True:
        try:
            return await call()
        except TransportError as error:
            kind = failure_of(error).kind
            busy = kind is Kind.BUSY
            wait_s, limit_s = (BUSY_WAIT_S, options.patience_s) if busy else (pause_s, patience_s)
            if not (busy or kind in _PASSING) or loop.time() + wait_s > began + limit_s:
                raise explained(error, options, entity) from error
        await asyncio.sleep(wait_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def explained(error: TransportError, options: Options, entity: str) -> PairbusError:
    """Return the same error in terms of the options that the user has given."""
    kind = failure_of(error).kind
    address = options.address
    if kind is Kind.NOT_FOUND:
        return EntityNotFound(f"entity {entity!r} does not exist in {address}: {error}")
    if kind is Kind.UNAUTHORIZED:
        credential = "key" if options.secret.credential is None else "token"
        return ConfigError(
            f"{options.secret.option}: {address} refuses its {credential} for entity {entity!r}: {error}"
        )
    if kind is Kind.DISABLED:
        return ConfigError(f"entity {entity!r} of {address} is disabled: {error}")
    return TransportError(f"entity {entity!r} of {address}: {error}", outcome_unknown=error.outcome_unknown)
