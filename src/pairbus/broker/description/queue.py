"""The settings of a queue."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pairbus.broker.description.authorization import AuthorizationRule, check_rules, rules_from_json, rules_to_json
from pairbus.broker.description.common import MESSAGE_SIZE_MIN_KB, check_path, checked_settings, dump, known_values
from pairbus.settings import fixed_at_creation


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """One queue's settings. Durations are milliseconds; `None` is unlimited or not set."""

    KIND: ClassVar[str] = "queue"
    IMMUTABLE: ClassVar[tuple[str, ...]] = fixed_at_creation(KIND)

    path: str
    "Path as the creator spelled it."
    lock_duration_ms: int = 60_000
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_ttl_ms: int | None = None
    "Default and ceiling of the messages' time to live."
    dead_letter_on_expiration: bool = False
    duplicate_window_ms: int = 600_000
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    forward_to: str | None = None
    "Path of the queue or topic that gets every message."
    forward_dead_lettered_to: str | None = None
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
    def from_values(cls, values: dict[str, Any]) -> QueueDescription:
        """Read the durable form."""
        known = known_values(cls, values)
        return cls(**{**known, "authorization": rules_from_json(values.get("authorization"))})

    @classmethod
    def from_json(cls, text: str) -> QueueDescription:
        return cls.from_values(json.loads(text))

    def checked(self) -> QueueDescription:
        """Return the description with normal paths, or raise InvalidDescription that names the setting."""
        return replace(
            self,
            path=check_path(self.path),
            authorization=check_rules(self.path, self.authorization),
            **checked_settings(self),
        )
