"""Answers about queues, topics, subscriptions and the namespace, with every element in the order of the service."""

from __future__ import annotations

from urllib.parse import urlsplit

from pairbus.broker.admin import QueueInfo, SubscriptionInfo, TopicInfo
from pairbus.broker.admin.atom import Elements, Markup, entry, format_time
from pairbus.broker.admin.authorization_xml import authorization_element
from pairbus.broker.admin.xml import COUNTS
from pairbus.settings import Setting, settings_of
from pairbus.settings.types import PATH

FILTER_COUNTS_SINCE = "2024-05"
_NAMES = {
    "queue": """
        LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive
        DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations
        SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status ForwardTo UserMetadata CreatedAt
        UpdatedAt AccessedAt SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning
        ForwardDeadLetteredMessagesTo EntityAvailabilityStatus EnableExpress MaxMessageSizeInKilobytes
    """,
    "topic": """
        DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow
        EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing IsAnonymousAccessible AuthorizationRules
        Status UserMetadata CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails SubscriptionCount SqlFilterCount
        CorrelationFilterCount AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus
        EnableSubscriptionPartitioning EnableExpress MaxMessageSizeInKilobytes
    """,
    "subscription": """
        LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration
        DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount EnableBatchedOperations Status ForwardTo
        CreatedAt UpdatedAt AccessedAt CountDetails UserMetadata ForwardDeadLetteredMessagesTo AutoDeleteOnIdle
        EntityAvailabilityStatus
    """,
}
_ORDER = {kind: names.split() for kind, names in _NAMES.items()}
"Elements in the order of the service; settings that are not named here come at the end."


def queue_entry(info: QueueInfo, base_url: str, author: str, version: str) -> str:
    total = info.active + info.dead_lettered + info.scheduled + info.deferred
    total += info.transfer + info.transfer_dead_lettered
    facts = {
        "SizeInBytes": info.size_bytes,
        "MessageCount": total,
        "IsAnonymousAccessible": False,
        "AuthorizationRules": authorization_element(info.description.authorization),
        "SupportOrdering": True,
        "CountDetails": _count_details(
            info.active, info.dead_lettered, info.scheduled, info.transfer, info.transfer_dead_lettered
        ),
    }
    # The JavaScript SDK takes the queue's name from the path of the id, so slashes stay slashes.
    return _entry(info, info.description.path, facts, base_url, author, version)


def topic_entry(info: TopicInfo, base_url: str, author: str, version: str) -> str:
    has_filter_counts = version >= FILTER_COUNTS_SINCE
    facts = {
        "SizeInBytes": info.size_bytes,
        "IsAnonymousAccessible": False,
        "AuthorizationRules": authorization_element(info.description.authorization),
        "CountDetails": _count_details(0, 0, info.scheduled, 0, 0),
        "SubscriptionCount": info.subscriptions,
        "SqlFilterCount": info.sql_filters if has_filter_counts else None,
        "CorrelationFilterCount": info.correlation_filters if has_filter_counts else None,
        "EnableSubscriptionPartitioning": False,
    }
    return _entry(info, info.description.path, facts, base_url, author, version)


def subscription_entry(info: SubscriptionInfo, base_url: str, author: str, version: str) -> str:
    total = info.active + info.dead_lettered + info.deferred + info.transfer + info.transfer_dead_lettered
    facts = {
        "MessageCount": total,
        # Scheduled messages wait in the topic, because its filters run later.
        "CountDetails": _count_details(info.active, info.dead_lettered, 0, info.transfer, info.transfer_dead_lettered),
    }
    return _entry(info, info.description.name, facts, base_url, author, version)


def _entry(
    info: QueueInfo | TopicInfo | SubscriptionInfo,
    title: str,
    facts: dict[str, object],
    base_url: str,
    author: str,
    version: str,
) -> str:
    """Write the settings of an entity and its other `facts`, which are elements by name; None is left out."""
    described = info.description
    values = {
        **{each.element: _setting(each, described, base_url, version) for each in settings_of(described.KIND)},
        "CreatedAt": format_time(described.created_ms),
        "UpdatedAt": format_time(described.updated_ms),
        "AccessedAt": format_time(info.accessed_ms),
        "EntityAvailabilityStatus": "Available",
        **facts,
    }
    order = dict.fromkeys((*_ORDER[described.KIND], *values))
    kind = type(described).__name__
    times = described.created_ms, described.updated_ms
    return entry(f"{base_url}/{described.path}", title, author, *times, kind, [(name, values[name]) for name in order])


def _setting(setting: Setting, description: object, base_url: str, version: str) -> object:
    if version < setting.since:
        return None
    value = setting.type.write(getattr(description, setting.attribute))
    if setting.type is PATH and value is not None:
        # With the address of the namespace, as the service shows it and the SDKs send it.
        return f"sb://{urlsplit(base_url).netloc}/{value}"
    return value


def namespace_entry(name: str, base_url: str, started_ms: int) -> str:
    elements: Elements = (
        ("Alias", ""),
        ("CreatedTime", format_time(started_ms)),
        ("MessagingSKU", "Premium"),  # the tier whose limits this broker has: messages up to 100 MB
        ("MessagingUnits", 1),
        ("ModifiedTime", format_time(started_ms)),
        ("Name", name),
        ("NamespaceType", "Messaging"),
    )
    return entry(f"{base_url}/$namespaceinfo", name, name, started_ms, started_ms, "NamespaceInfo", elements)


def _count_details(active: int, dead_lettered: int, scheduled: int, transfer: int, transfer_dead: int) -> Markup:
    counts = (
        ("ActiveMessageCount", active),
        ("DeadLetterMessageCount", dead_lettered),
        ("ScheduledMessageCount", scheduled),
        ("TransferMessageCount", transfer),
        ("TransferDeadLetterMessageCount", transfer_dead),
    )
    # The JavaScript SDK looks for the prefix on this element only, and for this prefix only.
    inside = "".join(f"<d2p1:{name}>{count}</d2p1:{name}>" for name, count in counts)
    return Markup(f'<CountDetails xmlns:d2p1="{COUNTS}">{inside}</CountDetails>')
