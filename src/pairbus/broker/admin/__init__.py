"""Administration over HTTP, as the genuine ServiceBusAdministrationClient speaks it: what it needs of a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from pairbus.access.sas import KeyRing
from pairbus.broker.clock import NamespaceClock
from pairbus.broker.description import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)

__all__ = ["AdminNamespace", "QueueInfo", "SubscriptionInfo", "TopicInfo"]

D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription, RuleDescription)


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue's settings and its counts at this moment."""

    description: QueueDescription
    active: int
    "Available or locked; deferred messages are counted apart."
    dead_lettered: int
    scheduled: int
    deferred: int
    size_bytes: int
    accessed_ms: int
    "Last send or receive in milliseconds since 1970; 0 is never."
    transfer: int = 0
    "Messages on their way to the entity that `forward_to` names."
    transfer_dead_lettered: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic's settings and its counts at this moment."""

    description: TopicDescription
    scheduled: int
    subscriptions: int
    sql_filters: int
    "SQL, true and false filters of all subscriptions."
    correlation_filters: int
    size_bytes: int
    accessed_ms: int
    "Last send in milliseconds since 1970; 0 is never."


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A subscription's settings and its counts at this moment."""

    description: SubscriptionDescription
    active: int
    dead_lettered: int
    deferred: int
    transfer: int
    transfer_dead_lettered: int
    accessed_ms: int
    "Last receive in milliseconds since 1970; 0 is never."


class AdminNamespace(Protocol):
    """One namespace as its administrator sees it. Names are given in any case and compare case-insensitively.

    A coroutine returns when the change is durable. A StoreError means that nothing was changed.
    """

    @property
    def name(self) -> str: ...

    @property
    def keys(self) -> KeyRing: ...

    @property
    def clock(self) -> NamespaceClock: ...

    async def reset(self, entities: Literal["keep", "delete"] = "keep") -> None:
        """Empty every entity, or delete all of them. StoreError: of those that are kept nothing has changed."""
        ...

    async def trouble(self) -> str | None:
        """Why changes cannot be stored at this moment; None when they can."""
        ...

    def now_ms(self) -> int: ...

    def real_ms(self) -> int:
        """Read the machine's clock, which tokens keep."""
        ...

    async def create(self, description: D) -> D:
        """Return the description as stored, with its times. EntityExists, InvalidDescription, StoreError, and
        EntityNotFound when the topic or subscription to which it belongs is missing."""
        ...

    async def create_subscription(
        self, description: SubscriptionDescription, rules: Sequence[RuleDescription]
    ) -> SubscriptionDescription:
        """Create a subscription with these rules instead of `$Default`, in one commit."""
        ...

    async def update(self, description: D) -> D:
        """Return the description as stored, with its times. EntityNotFound, InvalidDescription, StoreError."""
        ...

    async def delete(self, path: str) -> None:
        """Delete the entity with all that belongs to it. EntityNotFound, StoreError."""
        ...

    def queue_info(self, path: str) -> QueueInfo:
        """EntityNotFound."""
        ...

    def topic_info(self, path: str) -> TopicInfo:
        """EntityNotFound."""
        ...

    def subscription_info(self, topic: str, name: str) -> SubscriptionInfo:
        """EntityNotFound."""
        ...

    def rule(self, topic: str, subscription: str, name: str) -> RuleDescription:
        """EntityNotFound."""
        ...

    def queue_keys(self) -> list[str]:
        """Paths of all queues in lower case, sorted."""
        ...

    def topic_keys(self) -> list[str]:
        """Paths of all topics in lower case, sorted."""
        ...

    def subscription_keys(self, topic: str) -> list[str]:
        """Names of the topic's subscriptions in lower case, sorted. EntityNotFound."""
        ...

    def rule_keys(self, topic: str, subscription: str) -> list[str]:
        """Names of the subscription's rules in lower case, sorted. EntityNotFound."""
        ...
