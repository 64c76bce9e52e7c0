"""The settings of a topic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pairbus.broker.description.authorization import AuthorizationRule, check_rules, rules_from_json, rules_to_json
from pairbus.broker.description.common import MESSAGE_SIZE_MIN_KB, check_path, checked_settings, dump, known_values
from pairbus.settings import fixed_at_creation


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic's settings. Durations are milliseconds; `None` is unlimited or not set."""

    KIND: ClassVar[str] = "topic"
    IMMUTABLE: ClassVar[tuple[str, ...]] = fixed_at_creation(KIND)

    path: str
    "Path as the creator spelled it."
    default_ttl_ms: int | None = None
    "Default and ceiling of the messages' time to live."
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_window_ms: int = 600_000
    enable_batched_operations: bool = True
    filter_before_publishing: bool = False
    "Setting that is kept and shown only; matching is always decided before a send is accepted."
    support_ordering: bool = True
    status: str = "Active"
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int | None = None
    enable_partitioning: bool = False
    enable_express: bool = False
    max_message_size_kb: int = MESSAGE_SIZE_MIN_KB
    authorization: tuple[AuthorizationRule, ...] = ()
    created_ms: int = 0
    updated_ms: int = 0

    def to_json(self) -> str:
        return dump(self, authorization=rules_to_json(self.authorization))

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> TopicDescription:
        """Read the durable form."""
        known = known_values(cls, values)
        return cls(**{**known, "authorization": rules_from_json(values.get("authorization"))})

    def checked(self) -> TopicDescription:
        """Return the description with a normal path, or raise InvalidDescription that names the setting."""
        return replace(
            self,
            path=check_path(self.path, "topic"),
            authorization=check_rules(self.path, self.authorization),
            **checked_settings(self),
        )
