"""Settings of queues, topics and subscriptions: element names, and how requests are read.

Requests are read by namespace URI and in any element order: the SDKs differ in both prefixes and order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from pairbus.broker.admin.authorization_xml import read_authorization
from pairbus.broker.admin.entity_xml import MESSAGE_SIZE_SINCE
from pairbus.broker.admin.xml import Element
from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.errors import InvalidDescription
from pairbus.settings.durations import parse_duration, parse_limited_duration

S = TypeVar("S", QueueDescription, TopicDescription, SubscriptionDescription)
Table = dict[str, tuple[str, Callable[[str], Any]]]


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


def _integer(text: str) -> int:
    if not re.fullmatch(r"\s*-?[0-9]{1,18}\s*", text, re.ASCII):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


_SHARED: Table = {
    "DefaultMessageTimeToLive": ("default_ttl_ms", parse_duration),
    "EnableBatchedOperations": ("enable_batched_operations", _boolean),
    "Status": ("status", str.strip),
    "UserMetadata": ("user_metadata", str),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_ms", parse_duration),
}
_SENT_TO: Table = {  # queues and topics
    "MaxSizeInMegabytes": ("max_size_mb", _integer),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _boolean),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_window_ms", parse_limited_duration),
    "EnablePartitioning": ("enable_partitioning", _boolean),
    "EnableExpress": ("enable_express", _boolean),
    "MaxMessageSizeInKilobytes": ("max_message_size_kb", _integer),
}
_RECEIVED_FROM: Table = {  # queues and subscriptions
    "LockDuration": ("lock_duration_ms", parse_limited_duration),
    "RequiresSession": ("requires_session", _boolean),
    "DeadLetteringOnMessageExpiration": ("dead_letter_on_expiration", _boolean),
    "MaxDeliveryCount": ("max_delivery_count", _integer),
    "ForwardTo": ("forward_to", str.strip),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_to", str.strip),
}
SETTINGS: dict[type, Table] = {
    QueueDescription: {**_SHARED, **_SENT_TO, **_RECEIVED_FROM},
    TopicDescription: {
        **_SHARED,
        **_SENT_TO,
        "FilteringMessagesBeforePublishing": ("filter_before_publishing", _boolean),
        "SupportOrdering": ("support_ordering", _boolean),
    },
    SubscriptionDescription: {
        **_SHARED,
        **_RECEIVED_FROM,
        "DeadLetteringOnFilterEvaluationExceptions": ("dead_letter_on_filter_error", _boolean),
    },
}
"Settings that a client may write, by element name."

_CLEARED_BY_ABSENCE = ("ForwardTo", "UserMetadata", "ForwardDeadLetteredMessagesTo")
_SINCE = {"MaxMessageSizeInKilobytes": MESSAGE_SIZE_SINCE}
"First API version that knows a setting; the other settings exist in every version."
_ELEMENT_OF = {attribute: name for table in SETTINGS.values() for name, (attribute, _) in table.items()}


def created(new: S, element: Element, version: str, now_ms: int) -> S:
    """Return the description of a new entity. Ranges are checked when it is stored."""
    return replace(new, **_values(new, element, version, now_ms))


def updated(current: S, element: Element, version: str, now_ms: int) -> S:
    """Return the current description with the settings of the request.

    SDKs send back the settings that they have read. Settings that their version does not know are missing, and keep
    their value. An optional text is cleared by leaving it out.
    """
    values = _values(current, element, version, now_ms)
    table = SETTINGS[type(current)]
    for attribute in current.IMMUTABLE:
        if values.get(attribute, getattr(current, attribute)) != getattr(current, attribute):
            name = _ELEMENT_OF[attribute]
            raise InvalidDescription(f"{name} of {current.path!r} is fixed at creation and cannot be changed")
    cleared = {table[name][0]: None for name in _CLEARED_BY_ABSENCE if name in table}
    return replace(current, **{**cleared, **values})


def in_words_of_the_service(text: str) -> str:
    """Name the setting at the start of an error as the service does: `LockDuration`, not `lock_duration_ms`."""
    attribute, of, rest = text.partition(" of ")
    return f"{_ELEMENT_OF.get(attribute, attribute)}{of}{rest}"


def _values(current: S, element: Element, version: str, now_ms: int) -> dict[str, Any]:
    table = SETTINGS[type(current)]
    values: dict[str, Any] = {}
    for name, child in element.members().items():
        if name == "AuthorizationRules" and not isinstance(current, SubscriptionDescription) and not child.is_nil:
            values["authorization"] = read_authorization(child, current.authorization, now_ms)
        elif name in table and child.text.strip() and not child.is_nil:  # other elements are ignored, as by the service
            attribute, read = table[name]
            if version < _SINCE.get(name, ""):
                raise InvalidDescription(f"{name} needs api-version {_SINCE[name]} or newer, the request has {version}")
            try:
                values[attribute] = read(child.text)
            except ValueError as error:
                raise InvalidDescription(f"{name}: {error}") from None
    return values
