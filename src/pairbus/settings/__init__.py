"""The table of settings of queues, topics and subscriptions: a row has all that the product knows about a setting.

From this table come the checks of descriptions, the XML of the administration, configuration files and exports, the
fixtures for tests, the options of commands, the forms of the page, and the table in the documents. A new setting is a
row here and a field of the descriptions that have it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.settings.durations import DAY_MS, UNLIMITED_MS
from pairbus.settings.types import (
    DURATION,
    FLAG,
    LIMITED_DURATION,
    NUMBER,
    PATH,
    STATUS,
    STATUSES,
    TEXT,
    SettingType,
    path_of,
)

__all__ = ["KINDS", "SETTINGS", "STATUSES", "Setting", "SettingType", "fixed_at_creation", "path_of", "settings_of"]

KINDS = ("queue", "topic", "subscription")
_BOXES, _ENTRIES = ("queue", "subscription"), ("queue", "topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of entities."""

    attribute: str
    "Field of the broker's descriptions. A duration is in milliseconds, and None means unlimited or not set."
    element: str
    "Element of the administration's XML, and property of a configuration file."
    sdk: str
    "Attribute of the SDK's objects, keyword of its functions, and name in fixtures and in forms of the page."
    type: SettingType
    kinds: tuple[str, ...] = KINDS
    "Kinds of entities that have the setting."
    low: int = 0
    high: int | None = None
    "Lowest and highest value; None: the value has no range."
    unit: str = ""
    is_fixed: bool = False
    "True when it can be chosen at creation only."
    is_cleared_by_absence: bool = False
    "True when an update that leaves it out clears it."
    is_known_to_emulator: bool = False
    "True when Microsoft's emulator knows the property of a configuration file."
    since: str = ""
    "First API version that knows it; empty: every version."
    option: str = ""
    "Option of `create` and `update` of the commands, without `--`; empty: none."
    help: str
    "Meaning, in the help of the option and in documents."
    label: str = ""
    "Label in forms of the page; empty: the forms do not have it."
    hint: str = ""
    "Example in forms of the page."


SETTINGS = (
    Setting(
        attribute="lock_duration_ms",
        element="LockDuration",
        sdk="lock_duration",
        type=LIMITED_DURATION,
        kinds=_BOXES,
        low=1_000,
        high=300_000,
        unit="ms",
        is_known_to_emulator=True,
        option="lock-duration",
        help="Duration of a peek-lock, at most 5 minutes; such as 30s or 5m.",
        label="A receiver keeps a message locked for",
        hint="such as 30s or 5m",
    ),
    Setting(
        attribute="max_size_mb",
        element="MaxSizeInMegabytes",
        sdk="max_size_in_megabytes",
        type=NUMBER,
        kinds=_ENTRIES,
        low=1,
        high=1_048_576,
        unit="MB",
        option="max-size-mb",
        help="Size of the entity in megabytes.",
        label="Size at most, in MB",
    ),
    Setting(
        attribute="max_message_size_kb",
        element="MaxMessageSizeInKilobytes",
        sdk="max_message_size_in_kilobytes",
        type=NUMBER,
        kinds=_ENTRIES,
        low=1_024,
        high=102_400,
        unit="KB",
        since="2021-05",
        option="max-message-size-kb",
        help="Largest message in kilobytes.",
    ),
    Setting(
        attribute="default_ttl_ms",
        element="DefaultMessageTimeToLive",
        sdk="default_message_time_to_live",
        type=DURATION,
        low=1,
        high=UNLIMITED_MS,
        unit="ms",
        is_known_to_emulator=True,
        option="ttl",
        help="Default and ceiling of the time to live; such as 30s, 5m, 14d or never.",
        label="Messages live for",
        hint="such as 14d; empty: for ever",
    ),
    Setting(
        attribute="dead_letter_on_expiration",
        element="DeadLetteringOnMessageExpiration",
        sdk="dead_lettering_on_message_expiration",
        type=FLAG,
        kinds=_BOXES,
        is_known_to_emulator=True,
        option="dead-letter-on-expiration",
        help="Whether expired messages go to the dead-letter queue.",
        label="Dead-letter messages that have expired",
    ),
    Setting(
        attribute="dead_letter_on_filter_error",
        element="DeadLetteringOnFilterEvaluationExceptions",
        sdk="dead_lettering_on_filter_evaluation_exceptions",
        type=FLAG,
        kinds=("subscription",),
        option="dead-letter-on-filter-error",
        help="Whether messages whose filter fails are dead-lettered.",
    ),
    Setting(
        attribute="requires_duplicate_detection",
        element="RequiresDuplicateDetection",
        sdk="requires_duplicate_detection",
        type=FLAG,
        kinds=_ENTRIES,
        is_fixed=True,
        is_known_to_emulator=True,
        help="Messages whose id is remembered are dropped.",
        label="Drop messages with an id that was there before",
    ),
    Setting(
        attribute="duplicate_window_ms",
        element="DuplicateDetectionHistoryTimeWindow",
        sdk="duplicate_detection_history_time_window",
        type=LIMITED_DURATION,
        kinds=_ENTRIES,
        low=1_000,
        high=7 * DAY_MS,
        unit="ms",
        is_known_to_emulator=True,
        option="duplicate-window",
        help="How long message ids are remembered, at most 7 days; such as 10m.",
        label="Remember message ids for",
        hint="such as 10m",
    ),
    Setting(
        attribute="max_delivery_count",
        element="MaxDeliveryCount",
        sdk="max_delivery_count",
        type=NUMBER,
        kinds=_BOXES,
        low=1,
        high=2_147_483_647,
        is_known_to_emulator=True,
        option="max-delivery-count",
        help="Deliveries before a message is dead-lettered.",
        label="Deliveries before a message is dead-lettered",
    ),
    Setting(
        attribute="status",
        element="Status",
        sdk="status",
        type=STATUS,
        option="status",
        help=f"One of {', '.join(STATUSES)}.",
        label="Status",
    ),
    Setting(
        attribute="auto_delete_on_idle_ms",
        element="AutoDeleteOnIdle",
        sdk="auto_delete_on_idle",
        type=DURATION,
        low=300_000,
        high=UNLIMITED_MS,
        unit="ms",
        option="auto-delete-on-idle",
        help="Delete the entity when it was not used for this time, at least 5 minutes; such as 1h or never.",
    ),
    Setting(
        attribute="requires_session",
        element="RequiresSession",
        sdk="requires_session",
        type=FLAG,
        kinds=_BOXES,
        is_fixed=True,
        is_known_to_emulator=True,
        option="requires-session",
        help="Messages are received by session.",
        label="Messages belong to sessions",
    ),
    Setting(
        attribute="enable_partitioning",
        element="EnablePartitioning",
        sdk="enable_partitioning",
        type=FLAG,
        kinds=_ENTRIES,
        is_fixed=True,
        option="partitioned",
        help="Mark the entity as partitioned.",
    ),
    Setting(
        attribute="forward_to",
        element="ForwardTo",
        sdk="forward_to",
        type=PATH,
        kinds=_BOXES,
        is_cleared_by_absence=True,
        is_known_to_emulator=True,
        option="forward-to",
        help="Queue or topic that gets every message; '' for none.",
        label="Forward messages to",
    ),
    Setting(
        attribute="forward_dead_lettered_to",
        element="ForwardDeadLetteredMessagesTo",
        sdk="forward_dead_lettered_messages_to",
        type=PATH,
        kinds=_BOXES,
        is_cleared_by_absence=True,
        is_known_to_emulator=True,
        option="forward-dead-lettered-to",
        help="Queue or topic that gets the dead letters; '' for none.",
        label="Forward dead letters to",
    ),
    Setting(
        attribute="user_metadata",
        element="UserMetadata",
        sdk="user_metadata",
        type=TEXT,
        high=1024,
        unit="characters",
        is_cleared_by_absence=True,
        option="user-metadata",
        help="A note; '' for none.",
    ),
    Setting(
        attribute="enable_batched_operations",
        element="EnableBatchedOperations",
        sdk="enable_batched_operations",
        type=FLAG,
        help="Kept and shown only: the broker always stores messages in batches.",
    ),
    Setting(
        attribute="enable_express",
        element="EnableExpress",
        sdk="enable_express",
        type=FLAG,
        kinds=_ENTRIES,
        help="Kept and shown only: every message is stored before it is accepted.",
    ),
    Setting(
        attribute="filter_before_publishing",
        element="FilteringMessagesBeforePublishing",
        sdk="filtering_messages_before_publishing",
        type=FLAG,
        kinds=("topic",),
        help="Kept and shown only: filters are always evaluated before a send is accepted.",
    ),
    Setting(
        attribute="support_ordering",
        element="SupportOrdering",
        sdk="support_ordering",
        type=FLAG,
        kinds=("topic",),
        help="Kept and shown only: messages always keep their order.",
    ),
)


def settings_of(kind: str) -> tuple[Setting, ...]:
    """Return the settings of a kind of entities."""
    return tuple(setting for setting in SETTINGS if kind in setting.kinds)


def fixed_at_creation(kind: str) -> tuple[str, ...]:
    """Return the attributes that cannot be changed after creation."""
    return tuple(setting.attribute for setting in settings_of(kind) if setting.is_fixed)
