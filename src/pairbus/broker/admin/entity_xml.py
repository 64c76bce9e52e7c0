"""Answers about queues, topics, subscriptions and the namespace, with every element in the order of the service."""

from __future__ import annotations

from urllib.parse import urlsplit

from pairbus.broker.admin import QueueInfo, SubscriptionInfo, TopicInfo
from pairbus.broker.admin.atom import Elements, Markup, entry, format_time
from pairbus.broker.admin.authorization_xml import authorization_element
from pairbus.broker.admin.xml import COUNTS
from pairbus.settings.durations import format_duration

FILTER_COUNTS_SINCE = "2024-05"
MESSAGE_SIZE_SINCE = "2021-05"


def queue_entry(info: QueueInfo, base_url: str, author: str, version: str) -> str:
    d = info.description
    total = info.active + info.dead_lettered + info.scheduled + info.deferred
    total += info.transfer + info.transfer_dead_lettered
    counts = (info.active, info.dead_lettered, info.scheduled, info.transfer, info.transfer_dead_lettered)
    elements: Elements = (
        ("LockDuration", format_duration(d.lock_duration_ms)),
        ("MaxSizeInMegabytes", d.max_size_mb),
        ("RequiresDuplicateDetection", d.requires_duplicate_detection),
        ("RequiresSession", d.requires_session),
        ("DefaultMessageTimeToLive", format_duration(d.default_ttl_ms)),
        ("DeadLetteringOnMessageExpiration", d.dead_letter_on_expiration),
        ("DuplicateDetectionHistoryTimeWindow", format_duration(d.duplicate_window_ms)),
        ("MaxDeliveryCount", d.max_delivery_count),
        ("EnableBatchedOperations", d.enable_batched_operations),
        ("SizeInBytes", info.size_bytes),
        ("MessageCount", total),
        ("IsAnonymousAccessible", False),
        ("AuthorizationRules", authorization_element(d.authorization)),
        ("Status", d.status),
        ("ForwardTo", _absolute(d.forward_to, base_url)),
        ("UserMetadata", d.user_metadata),
        ("CreatedAt", format_time(d.created_ms)),
        ("UpdatedAt", format_time(d.updated_ms)),
        ("AccessedAt", format_time(info.accessed_ms)),
        ("SupportOrdering", True),
        ("CountDetails", _count_details(*counts)),
        ("AutoDeleteOnIdle", format_duration(d.auto_delete_on_idle_ms)),
        ("EnablePartitioning", d.enable_partitioning),
        ("ForwardDeadLetteredMessagesTo", _absolute(d.forward_dead_lettered_to, base_url)),
        ("EntityAvailabilityStatus", "Available"),
        ("EnableExpress", d.enable_express),
        ("MaxMessageSizeInKilobytes", d.max_message_size_kb if version >= MESSAGE_SIZE_SINCE else None),
    )
    # The JavaScript SDK takes the queue's name from the path of the id, so slashes stay slashes.
    return entry(f"{base_url}/{d.path}", d.path, author, d.created_ms, d.updated_ms, "QueueDescription", elements)


def topic_entry(info: TopicInfo, base_url: str, author: str, version: str) -> str:
    d = info.description
    has_filter_counts = version >= FILTER_COUNTS_SINCE
    elements: Elements = (
        ("DefaultMessageTimeToLive", format_duration(d.default_ttl_ms)),
        ("MaxSizeInMegabytes", d.max_size_mb),
        ("RequiresDuplicateDetection", d.requires_duplicate_detection),
        ("DuplicateDetectionHistoryTimeWindow", format_duration(d.duplicate_window_ms)),
        ("EnableBatchedOperations", d.enable_batched_operations),
        ("SizeInBytes", info.size_bytes),
        ("FilteringMessagesBeforePublishing", d.filter_before_publishing),
        ("IsAnonymousAccessible", False),
        ("AuthorizationRules", authorization_element(d.authorization)),
        ("Status", d.status),
        ("UserMetadata", d.user_metadata),
        ("CreatedAt", format_time(d.created_ms)),
        ("UpdatedAt", format_time(d.updated_ms)),
        ("AccessedAt", format_time(info.accessed_ms)),
        ("SupportOrdering", d.support_ordering),
        ("CountDetails", _count_details(0, 0, info.scheduled, 0, 0)),
        ("SubscriptionCount", info.subscriptions),
        ("SqlFilterCount", info.sql_filters if has_filter_counts else None),
        ("CorrelationFilterCount", info.correlation_filters if has_filter_counts else None),
        ("AutoDeleteOnIdle", format_duration(d.auto_delete_on_idle_ms)),
        ("EnablePartitioning", d.enable_partitioning),
        ("EntityAvailabilityStatus", "Available"),
        ("EnableSubscriptionPartitioning", False),
        ("EnableExpress", d.enable_express),
        ("MaxMessageSizeInKilobytes", d.max_message_size_kb if version >= MESSAGE_SIZE_SINCE else None),
    )
    return entry(f"{base_url}/{d.path}", d.path, author, d.created_ms, d.updated_ms, "TopicDescription", elements)


def subscription_entry(info: SubscriptionInfo, base_url: str, author: str) -> str:
    d = info.description
    total = info.active + info.dead_lettered + info.deferred + info.transfer + info.transfer_dead_lettered
    elements: Elements = (
        ("LockDuration", format_duration(d.lock_duration_ms)),
        ("RequiresSession", d.requires_session),
        ("DefaultMessageTimeToLive", format_duration(d.default_ttl_ms)),
        ("DeadLetteringOnMessageExpiration", d.dead_letter_on_expiration),
        ("DeadLetteringOnFilterEvaluationExceptions", d.dead_letter_on_filter_error),
        ("MessageCount", total),
        ("MaxDeliveryCount", d.max_delivery_count),
        ("EnableBatchedOperations", d.enable_batched_operations),
        ("Status", d.status),
        ("ForwardTo", _absolute(d.forward_to, base_url)),
        ("CreatedAt", format_time(d.created_ms)),
        ("UpdatedAt", format_time(d.updated_ms)),
        ("AccessedAt", format_time(info.accessed_ms)),
        (
            "CountDetails",
            # Scheduled messages wait in the topic, because its filters run later.
            _count_details(info.active, info.dead_lettered, 0, info.transfer, info.transfer_dead_lettered),
        ),
        ("UserMetadata", d.user_metadata),
        ("ForwardDeadLetteredMessagesTo", _absolute(d.forward_dead_lettered_to, base_url)),
        ("AutoDeleteOnIdle", format_duration(d.auto_delete_on_idle_ms)),
        ("EntityAvailabilityStatus", "Available"),
    )
    url = f"{base_url}/{d.path}"
    return entry(url, d.name, author, d.created_ms, d.updated_ms, "SubscriptionDescription", elements)


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


def _absolute(path: str | None, base_url: str) -> str | None:
    """Return a destination with the address of the namespace, as the service shows it and the SDKs send it."""
    return None if path is None else f"sb://{urlsplit(base_url).netloc}/{path}"


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
