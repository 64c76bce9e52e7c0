"""Finds the ages of backlog queues: peeks at the first messages of each that is not empty, as `pairbus status` does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pairbus.errors import PairbusError
from pairbus.pairing.rotation import primary_of

if TYPE_CHECKING:
    from pairbus.dashboard.watch import Watch
    from pairbus.transport import Carrier

QUEUES_MAX = 100  # queues in one look
PEEKED = 5  # messages of each queue: the first ones may be deferred
ANSWER_S = 2.0

CarrierOf = Callable[[str], Awaitable["Carrier"]]
"Name of a namespace → the way for its messages."


def ages_of(watch: Watch, carrier_of: CarrierOf) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Return the look at the ages of the backlog queues of a namespace that is shown without its pair."""

    async def look() -> dict[str, Any]:
        queues: list[dict[str, Any]] = []
        for name, overview in watch.overviews.items():
            now_s = time.time() + overview.get("clock", {}).get("offset_seconds", 0)
            paths = [
                path
                for path, entity in overview.get("entities", {}).items()
                if entity.get("active") and primary_of(path) is not None
            ]
            if overview.get("reachable") and paths:
                queues += await _ages(await carrier_of(name), paths[:QUEUES_MAX], now_s)
        ages = [one["oldest_s"] for one in queues]
        return {"queues": queues, "oldest_s": max(ages, default=None)}

    return look


async def _ages(carrier: Carrier, paths: list[str], now_s: float) -> list[dict[str, Any]]:
    # Imported when needed: a page without a backlog does not pay for the explorer.
    from pairbus.explorer import Address, described, peek

    ages: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(ANSWER_S):
            for path in paths:
                messages = [described(one) for one in await peek(carrier, Address(path), 0, PEEKED, bodies=False)]
                times = [
                    datetime.fromisoformat(one["enqueued_time"]).timestamp()
                    for one in messages
                    if one.get("enqueued_time") and one.get("state") == "active"
                ]
                if times:
                    ages.append({"path": path, "oldest_s": max(now_s - min(times), 0.0)})
    except (TimeoutError, PairbusError):  # unreachable or busy: depths are shown without ages, as far as they are known
        return ages
    return ages
