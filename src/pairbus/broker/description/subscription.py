"""The settings of a subscription."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pairbus.broker.description.common import check_name, check_path, checked_settings, dump, known_values
from pairbus.settings import fixed_at_creation


@dataclass(frozen=True, slots=True)
class SubscriptionDescription:
    """One subscription's settings. Durations are milliseconds; `None` is unlimited or not set."""

    KIND: ClassVar[str] = "subscription"
    IMMUTABLE: ClassVar[tuple[str, ...]] = fixed_at_creation(KIND)

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
        return replace(
            self,
            topic=check_path(self.topic, "topic"),
            name=check_name(self.name, "subscription"),
            **checked_settings(self),
        )
