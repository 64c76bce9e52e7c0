"""Administration over HTTP, as the genuine ServiceBusAdministrationClient speaks it: its view of a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from pairbus.auth.sas import KeyRing
from pairbus.broker.description import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.kit.clock import NamespaceClock

__all__ = ["AdminNamespace", "QueueInfo", "SubscriptionInfo", "TopicInfo"]

D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription, RuleDescription)


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue's settings and its counts at this moment."""

    description: QueueDescription
    active: int
    "Messages that are available or locked; deferred messages are counted apart."
    dead_lettered: int
    scheduled: int
    deferred: int
    size_bytes: int
    accessed_ms: int
    "Time of the last send or receive in milliseconds since 1970; 0: never."
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
    "Time of the last send in milliseconds since 1970; 0: never."


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
    "Time of the last receive in milliseconds since 1970; 0: never."


class AdminNamespace(Protocol):
    """One namespace as its administrator sees it. Names are given in any case and compare case-insensitively.

    A coroutine returns when the change is durable. A StoreError means that no change was made.
    """

    @property
    def name(self) -> str: ...

    @property
    def keys(self) -> KeyRing: ...

    @property
    def clock(self) -> NamespaceClock: ...

    async def reset(self, entities: Literal["keep", "delete"] = "keep") -> None:
        """Empty every entity, or delete all of them. StoreError: the entities that exist are unchanged."""
        ...

    async def trouble(self) -> str | None:
        """Return why changes cannot be stored now; None when they can."""
        ...

    def now_ms(self) -> int: ...

    def real_ms(self) -> int:
        """Read the machine's clock, by which tokens expire."""
        ...

    async def create(self, description: D) -> D:
        """Create an entity and return its description as stored, with its times. Raises EntityExists,
        InvalidDescription, StoreError, and EntityNotFound when its topic or subscription is missing."""
        ...

    async def create_subscription(
        self, description: SubscriptionDescription, rules: Sequence[RuleDescription]
    ) -> SubscriptionDescription:
        """Create a subscription with these rules instead of `$Default`, in one commit."""
        ...

    async def update(self, description: D) -> D:
        """Change an entity and return its stored description. Raises EntityNotFound, InvalidDescription, StoreError."""
        ...

    async def delete(self, path: str) -> None:
        """Delete the entity with all that belongs to it. Raises EntityNotFound, StoreError."""
        ...

    def queue_info(self, path: str) -> QueueInfo:
        """Return a queue and its counts, or raise EntityNotFound."""
        ...

    def topic_info(self, path: str) -> TopicInfo:
        """Return a topic and its counts, or raise EntityNotFound."""
        ...

    def subscription_info(self, topic: str, name: str) -> SubscriptionInfo:
        """Return a subscription and its counts, or raise EntityNotFound."""
        ...

    def rule(self, topic: str, subscription: str, name: str) -> RuleDescription:
        """Return a rule, or raise EntityNotFound."""
        ...

    def queue_keys(self) -> list[str]:
        """Return paths of all queues in lower case, sorted."""
        ...

    def topic_keys(self) -> list[str]:
        """Return paths of all topics in lower case, sorted."""
        ...

    def subscription_keys(self, topic: str) -> list[str]:
        """Return the names of the topic's subscriptions in lower case, sorted, or raise EntityNotFound."""
        ...

    def rule_keys(self, topic: str, subscription: str) -> list[str]:
        """Return the names of the subscription's rules in lower case, sorted, or raise EntityNotFound."""
        ...
