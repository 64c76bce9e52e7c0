"""The ways to settle a message: on the link over which it came, or by its lock token through `$management`.

The link is the way as long as it is the one over which the message came. By the token go deferred messages, and those
of a link that is gone: the lock is the queue's, and outlives the link. The lock of a session does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from pairbus.amqp.performatives import Composite
from pairbus.transport import Management
from pairbus.transport.links.management import DispositionStatus
from pairbus.transport.links.settlement import COMPLETED, DEFERRED, abandoned, dead_lettered


class Settle(Enum):
    """An operation that settles a message, in the SDK's words."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"


class DeliveryPlace(NamedTuple):
    """Where a message was delivered: a link, whose name no other process has either, and the delivery id on it."""

    link_name: str
    delivery_id: int


@dataclass(frozen=True, slots=True)
class Locked:
    """A locked message, as far as settling it needs to know."""

    place: DeliveryPlace | None
    "None: it was received by its sequence number, over no link."
    token: UUID | None


@dataclass(frozen=True, slots=True)
class Settlement:
    """One operation with what it says about the message."""

    operation: Settle
    reason: str | None = None
    description: str | None = None
    properties: Mapping[str, Any] | None = None
    "Application properties that an abandon changes."


OUTCOMES: dict[Settle, Callable[[Settlement], Composite]] = {
    Settle.COMPLETE: lambda _: COMPLETED,
    Settle.ABANDON: lambda said: abandoned(said.properties),
    Settle.DEFER: lambda _: DEFERRED,
    Settle.DEAD_LETTER: lambda said: dead_lettered(said.reason, said.description),
}
"The way on the link: the outcome of a delivery."
STATUSES: dict[Settle, DispositionStatus] = {
    Settle.COMPLETE: "completed",
    Settle.ABANDON: "abandoned",
    Settle.DEFER: "defered",
    Settle.DEAD_LETTER: "suspended",
}


async def settle_by_token(
    node: Management, token: UUID, said: Settlement, session_id: str | None, timeout_s: float
) -> None:
    is_dead = said.operation is Settle.DEAD_LETTER
    await node.update_disposition(
        STATUSES[said.operation],
        [token],
        reason=(said.reason or "") if is_dead else None,
        description=(said.description or "") if is_dead else None,
        properties=said.properties,
        session_id=session_id,
        timeout_s=timeout_s,
    )
