"""Atom XML of the administration API: queue settings in and out, feeds, errors.

Requests are read by namespace URI and in any element order: the SDKs differ in both prefixes and order.
Answers have every element in the order of the service, because the JavaScript SDK throws when one is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from pairbus.broker.admin import QueueInfo
from pairbus.broker.admin.durations import format_duration, parse_duration, parse_limited_duration
from pairbus.broker.description import QueueDescription
from pairbus.errors import InvalidDescription

ATOM = "http://www.w3.org/2005/Atom"
SERVICE = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

DEPTH_MAX = 32  # entry / content / QueueDescription / AuthorizationRules / rule / Rights / AccessRights are 7
NEVER_TEXT = "0001-01-01T00:00:00Z"


class MalformedEntry(ValueError):
    """The request body is not an Atom entry that can be read; the text says where it fails."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A request body: the kind of entity described, and its settings as text."""

    kind: str
    "`QueueDescription`, `TopicDescription`, …"
    settings: dict[str, str]
    "Element name to text; elements that are empty or nil are left out."
    parents: frozenset[str]
    "Names of the settings that hold elements instead of text."


def parse_entry(body: bytes) -> Entry:
    """Reads `entry/content/<kind>/<settings>`, or MalformedEntry. A DTD is refused before anything in it is read."""
    reader = _EntryReader()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = reader.doctype
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise MalformedEntry(f"the request body is not well-formed XML: {error}") from None
    if reader.kind is None:
        raise MalformedEntry(f"the request body has no description inside entry/content of {ATOM}")
    settings = {name: text for name, text in reader.settings.items() if text.strip()}
    return Entry(reader.kind, settings, frozenset(reader.parents))


_CONTENT_PATH = [f"{ATOM} entry", f"{ATOM} content"]


@dataclass(slots=True)
class _EntryReader:
    """The path of the open elements decides what an element means; nothing deeper than a setting is kept."""

    path: list[str] = field(default_factory=list)
    "Names as expat gives them: namespace URI, a space, local name."
    kind: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    parents: set[str] = field(default_factory=set)

    def doctype(self, *_: object) -> None:
        raise MalformedEntry("the request body has a document type declaration; none is allowed")

    def start(self, name: str, _: dict[str, str]) -> None:
        if len(self.path) >= DEPTH_MAX:
            raise MalformedEntry(f"the request body is nested deeper than {DEPTH_MAX} elements")
        if not self.path and name != _CONTENT_PATH[0]:
            raise MalformedEntry(f"the request body is {name!r}; expected is {_CONTENT_PATH[0]!r}")
        if outer := self._setting():
            self.parents.add(outer)
        self.path.append(name)
        if self.path[:-1] == _CONTENT_PATH and (local := _service_name(name)):
            if self.kind is not None:
                raise MalformedEntry(f"the request body describes both a {self.kind} and a {local}")
            self.kind = local
        elif setting := self._setting():
            if setting in self.settings:
                raise MalformedEntry(f"{setting} occurs twice")
            self.settings[setting] = ""

    def end(self, _: str) -> None:
        self.path.pop()

    def text(self, text: str) -> None:
        if setting := self._setting():
            self.settings[setting] += text

    def _setting(self) -> str | None:
        """The setting whose element is the innermost open one."""
        if len(self.path) != 4 or self.path[:2] != _CONTENT_PATH or _service_name(self.path[2]) is None:
            return None
        return _service_name(self.path[3])


def _service_name(name: str) -> str | None:
    uri, _, local = name.rpartition(" ")
    return local if uri == SERVICE else None


# ── settings ──


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


def _integer(text: str) -> int:
    if not re.fullmatch(r"\s*-?[0-9]{1,18}\s*", text, re.ASCII):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "LockDuration": ("lock_duration_ms", parse_limited_duration),
    "MaxSizeInMegabytes": ("max_size_mb", _integer),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _boolean),
    "RequiresSession": ("requires_session", _boolean),
    "DefaultMessageTimeToLive": ("default_ttl_ms", parse_duration),
    "DeadLetteringOnMessageExpiration": ("dead_letter_on_expiration", _boolean),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_window_ms", parse_limited_duration),
    "MaxDeliveryCount": ("max_delivery_count", _integer),
    "EnableBatchedOperations": ("enable_batched_operations", _boolean),
    "Status": ("status", str.strip),
    "ForwardTo": ("forward_to", str.strip),
    "UserMetadata": ("user_metadata", str),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_ms", parse_duration),
    "EnablePartitioning": ("enable_partitioning", _boolean),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_to", str.strip),
    "EnableExpress": ("enable_express", _boolean),
    "MaxMessageSizeInKilobytes": ("max_message_size_kb", _integer),
}
"The settings that a client may write, by element name."

_CLEARED_BY_ABSENCE = ("ForwardTo", "UserMetadata", "ForwardDeadLetteredMessagesTo")
_FIXED_AT_CREATION = ("RequiresDuplicateDetection", "RequiresSession", "EnablePartitioning")


def created(path: str, entry: Entry) -> QueueDescription:
    """The description of a new queue. Ranges are checked by whoever stores it."""
    return replace(QueueDescription(path), **_values(entry))


def updated(current: QueueDescription, entry: Entry) -> QueueDescription:
    """The current description with the settings of the entry.

    SDKs send what they have read, without the settings that their version does not know: those keep their value.
    Texts that are set or not have no other way to be cleared than by absence.
    """
    values = _values(entry)
    for name in _FIXED_AT_CREATION:
        attribute = SETTINGS[name][0]
        if values.get(attribute, getattr(current, attribute)) != getattr(current, attribute):
            raise InvalidDescription(f"{name} of {current.path!r} is fixed at creation and cannot be changed")
    cleared = {SETTINGS[name][0]: None for name in _CLEARED_BY_ABSENCE}
    return replace(current, **{**cleared, **values})


def _values(entry: Entry) -> dict[str, Any]:
    if "AuthorizationRules" in entry.parents:
        raise InvalidDescription("AuthorizationRules of a queue are not supported yet: keys belong to the namespace")
    values: dict[str, Any] = {}
    for name, text in entry.settings.items():
        if name in SETTINGS:  # the service ignores what it does not know, and so do we
            attribute, read = SETTINGS[name]
            try:
                values[attribute] = read(text)
            except ValueError as error:
                raise InvalidDescription(f"{name}: {error}") from None
    return values


# ── answers ──


def queue_entry(info: QueueInfo, base_url: str, author: str) -> str:
    d = info.description
    total = info.active + info.dead_lettered + info.scheduled + info.deferred
    elements: tuple[tuple[str, object], ...] = (
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
        ("AuthorizationRules", ""),
        ("Status", d.status),
        ("ForwardTo", d.forward_to),
        ("UserMetadata", d.user_metadata),
        ("CreatedAt", format_time(d.created_ms)),
        ("UpdatedAt", format_time(d.updated_ms)),
        ("AccessedAt", format_time(info.accessed_ms)),
        ("SupportOrdering", True),
        ("CountDetails", _count_details(info)),
        ("AutoDeleteOnIdle", format_duration(d.auto_delete_on_idle_ms)),
        ("EnablePartitioning", d.enable_partitioning),
        ("ForwardDeadLetteredMessagesTo", d.forward_dead_lettered_to),
        ("EntityAvailabilityStatus", "Available"),
        ("EnableExpress", d.enable_express),
        ("MaxMessageSizeInKilobytes", d.max_message_size_kb),
    )
    # The JavaScript SDK takes the queue's name from the path of the id, so slashes stay slashes.
    return _entry(f"{base_url}/{d.path}", d.path, author, d.created_ms, d.updated_ms, "QueueDescription", elements)


def namespace_entry(name: str, base_url: str, started_ms: int) -> str:
    elements: tuple[tuple[str, object], ...] = (
        ("Alias", ""),
        ("CreatedTime", format_time(started_ms)),
        ("MessagingSKU", "Premium"),  # the tier whose limits this broker has: messages up to 100 MB
        ("MessagingUnits", 1),
        ("ModifiedTime", format_time(started_ms)),
        ("Name", name),
        ("NamespaceType", "Messaging"),
    )
    # The Python SDK takes the namespace's name from the title.
    return _entry(f"{base_url}/$namespaceinfo", name, name, started_ms, started_ms, "NamespaceInfo", elements)


def feed(title: str, entries: Iterable[str], self_url: str, next_url: str | None, now_ms: int) -> str:
    """The Python SDK goes to the next page only if there are exactly two links, the next one second."""
    links = f'<link rel="self" href={quoteattr(self_url)}/>'
    if next_url is not None:
        links += f'<link rel="next" href={quoteattr(next_url)}/>'
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{escape(title)}</title><id>{escape(self_url)}</id>'
        f"<updated>{format_time(now_ms)}</updated>{links}{''.join(entries)}</feed>"
    )


def error_body(status: int, detail: str) -> str:
    # A name from the request may hold characters that XML 1.0 cannot carry at all.
    printable = re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", detail)
    return f"<Error><Code>{status}</Code><Detail>{escape(printable)}</Detail></Error>"


def format_time(time_ms: int) -> str:
    if time_ms <= 0:
        return NEVER_TEXT
    seconds, rest_ms = divmod(time_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ms:03}Z"


class _Element(str):
    """A whole element, as XML already."""

    __slots__ = ()


def _count_details(info: QueueInfo) -> _Element:
    counts = (
        ("ActiveMessageCount", info.active),
        ("DeadLetterMessageCount", info.dead_lettered),
        ("ScheduledMessageCount", info.scheduled),
        ("TransferMessageCount", 0),
        ("TransferDeadLetterMessageCount", 0),
    )
    # The JavaScript SDK looks for the prefix on this very element, and for no other one.
    inside = "".join(f"<d2p1:{name}>{count}</d2p1:{name}>" for name, count in counts)
    return _Element(f'<CountDetails xmlns:d2p1="{COUNTS}">{inside}</CountDetails>')


def _entry(
    url: str,
    title: str,
    author: str,
    created_ms: int,
    updated_ms: int,
    kind: str,
    elements: Iterable[tuple[str, object]],
) -> str:
    content = "".join(_element(name, value) for name, value in elements if value is not None)
    return (
        f'<entry xmlns="{ATOM}"><id>{escape(url)}?api-version=2021-05</id><title type="text">{escape(title)}</title>'
        f"<published>{format_time(created_ms)}</published><updated>{format_time(updated_ms)}</updated>"
        f'<author><name>{escape(author)}</name></author><link rel="self" href={quoteattr(url)}/>'
        f'<content type="application/xml"><{kind} xmlns="{SERVICE}" xmlns:i="{INSTANCE}">{content}</{kind}></content>'
        "</entry>"
    )


def _element(name: str, value: object) -> str:
    if isinstance(value, _Element):
        return value
    text = str(value).lower() if isinstance(value, bool) else escape(str(value))
    return f"<{name}>{text}</{name}>"
