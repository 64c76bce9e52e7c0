"""The settings of a subscription."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pairbus.broker.description.common import (
    check_metadata,
    check_name,
    check_path,
    check_ranges,
    check_status,
    destination,
    dump,
    known_values,
)
from pairbus.settings.durations import UNLIMITED_MS

RANGES = (
    ("lock_duration_ms", 1_000, 300_000, "ms"),
    ("default_ttl_ms", 1, UNLIMITED_MS, "ms"),
    ("max_delivery_count", 1, 2_147_483_647, ""),
    ("auto_delete_on_idle_ms", 300_000, UNLIMITED_MS, "ms"),
)


@dataclass(frozen=True, slots=True)
class SubscriptionDescription:
    """One subscription's settings. Durations are milliseconds; `None` is unlimited or not set."""

    KIND: ClassVar[str] = "subscription"
    IMMUTABLE: ClassVar[tuple[str, ...]] = ("requires_session",)

    topic: str
    "Path of the topic."
    name: str
    "Name as the creator spelled it."
    lock_duration_ms: int = 60_000
    requires_session: bool = False
    default_ttl_ms: int | None = None
    "Default and ceiling of the messages' time to live."
    dead_letter_on_expiration: bool = False
    dead_letter_on_filter_error: bool = True
    "True: a message whose filter fails is dead-lettered here; False: this subscription does not get it."
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    forward_to: str | None = None
    "Path of the queue or topic that gets every message."
    forward_dead_lettered_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int | None = None
    created_ms: int = 0
    updated_ms: int = 0

    @property
    def path(self) -> str:
        return f"{self.topic}/Subscriptions/{self.name}"

    def to_json(self) -> str:
        return dump(self)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> SubscriptionDescription:
        """Read the durable form."""
        return cls(**known_values(cls, values))

    def checked(self) -> SubscriptionDescription:
        """Return the description with normal paths, or raise InvalidDescription that names the setting."""
        check_ranges(self, RANGES)
        check_status(self, self.status)
        check_metadata(self, self.user_metadata)
        forward_to = destination(self, "forward_to", self.forward_to)
        return replace(
            self,
            topic=check_path(self.topic, "topic"),
            name=check_name(self.name, "subscription"),
            forward_to=forward_to,
            forward_dead_lettered_to=destination(self, "forward_dead_lettered_to", self.forward_dead_lettered_to),
            # No client receives from an entity that forwards: it would count as idle for ever.
            auto_delete_on_idle_ms=None if forward_to else self.auto_delete_on_idle_ms,
        )
