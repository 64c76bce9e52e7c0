"""The message as filters see it: system and application properties, decoded from the stored bytes when asked for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import APPLICATION_PROPERTIES, PROPERTIES, sections
from pairbus.amqp.types import Described, Int, Long, Symbol, Timestamp, decode
from pairbus.filters.errors import FilterEvaluationError

PARTITION_KEY, VIA_PARTITION_KEY = "x-opt-partition-key", "x-opt-via-partition-key"
SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
MESSAGE_ID, TO, SUBJECT, REPLY_TO, CORRELATION_ID, CONTENT_TYPE, SESSION_ID, REPLY_TO_SESSION_ID = (
    0,
    2,
    3,
    4,
    5,
    6,
    10,
    12,
)
"Places of the fields in the properties section (AMQP 3.2.4); a session is a group there."
TIMESPAN = Symbol("com.microsoft:timespan")
TTL_UNLIMITED = timedelta(days=10_675_199, seconds=10_085, microseconds=477_580)
"Time to live of a message that never expires: the largest TimeSpan of .NET."
_UNIX_EPOCH_TICKS = 621_355_968_000_000_000  # 100-nanosecond ticks from the year 1 to 1970


class MessageView:
    """One message. The broker gives the constructor its bytes, and the other values that it knows."""

    __slots__ = (
        "_annotations",
        "_parts",
        "_properties",
        "_user",
        "annotations",
        "body",
        "delivery_count",
        "enqueued_ms",
        "scheduled_ms",
        "seq",
        "ttl_ms",
        "user",
    )

    def __init__(
        self,
        body: bytes,
        annotations: bytes = b"",
        *,
        ttl_ms: int | None = None,
        enqueued_ms: int = 0,
        seq: int = 0,
        scheduled_ms: int = 0,
        delivery_count: int = 0,
    ) -> None:
        self.body = body
        "Sections from the properties on, in the standard's order."
        self.annotations = annotations
        "Encoded pairs of the message annotations, without the map's head."
        self.ttl_ms = ttl_ms
        "Time to live that the sender gave; None or 0: no limit."
        self.enqueued_ms = enqueued_ms
        self.seq = seq
        self.scheduled_ms = scheduled_ms
        self.delivery_count = delivery_count
        self.user: dict[str, Any] | None = None
        "Application properties by lower-case name as filters compare them; None until `load_user` was called."
        self._user: dict[Any, Any] | None = None
        self._properties: list[Any] | None = None
        self._annotations: dict[Any, Any] | None = None
        self._parts: tuple[tuple[int, int], tuple[int, int], int] | None = None

    def load_user(self) -> dict[str, Any]:
        """Return `user`, decoding the application properties if that was not done before."""
        if self.user is None:
            self.user = {
                k.lower(): comparable(v) for k, v in self.application_properties().items() if isinstance(k, str)
            }
        return self.user

    def application_properties(self) -> dict[Any, Any]:
        """Return the application properties with their own names and AMQP types. Callers must not change the dict."""
        if self._user is None:
            at = self.parts()[1][0]
            self._user = _decoded(self.body, at, dict) if at else {}
        return self._user

    def properties(self) -> list[Any]:
        """Return the fields of the properties section. Callers must not change the list."""
        if self._properties is None:
            at = self.parts()[0][0]
            self._properties = _decoded(self.body, at, list) if at else []
        return self._properties

    def annotation_pairs(self) -> dict[Any, Any]:
        """Return the sender's annotations. Callers must not change the dict."""
        if self._annotations is None:
            values, at = [], 0
            while at < len(self.annotations):
                value, at = _decode(self.annotations, at)
                values.append(value)
            self._annotations = dict(zip(values[::2], values[1::2], strict=True))
        return self._annotations

    def parts(self) -> tuple[tuple[int, int], tuple[int, int], int]:
        """Return (value and end of the properties, value and end of the application properties, start of the rest).

        A missing section has (0, 0).
        """
        if self._parts is None:
            spans, rest = {PROPERTIES: (0, 0), APPLICATION_PROPERTIES: (0, 0)}, 0
            try:
                for code, _, value_at, end in sections(self.body):
                    if code not in spans:
                        break
                    spans[code], rest = (value_at, end), end
            except ProtocolError as error:
                raise _unreadable(error) from error
            self._parts = spans[PROPERTIES], spans[APPLICATION_PROPERTIES], rest
        return self._parts

    def editable(self) -> MessageView:
        """Return a view of the same message whose decoded properties belong to the caller, who may change them."""
        copy = MessageView(
            self.body,
            self.annotations,
            ttl_ms=self.ttl_ms,
            enqueued_ms=self.enqueued_ms,
            seq=self.seq,
            scheduled_ms=self.scheduled_ms,
            delivery_count=self.delivery_count,
        )
        copy._parts = self.parts()
        copy.user = dict(self.load_user())
        copy._user = dict(self.application_properties())
        copy._properties = list(self.properties())
        copy._annotations = dict(self.annotation_pairs())
        return copy

    def text(self, index: int) -> str | None:
        """Return a field of the properties section as text."""
        fields = self.properties()
        return text_of(fields[index]) if index < len(fields) else None

    def annotation_text(self, key: str) -> str | None:
        return text_of(self.annotation_pairs().get(key))


def _decode(buf: bytes, at: int) -> tuple[Any, int]:
    try:
        return decode(buf, at)
    except ProtocolError as error:
        raise _unreadable(error) from error


def _decoded(buf: bytes, at: int, kind: type[Any]) -> Any:
    value, _ = _decode(buf, at)
    if not isinstance(value, kind):
        raise FilterEvaluationError(f"a section of the message is not a {kind.__name__}")
    return value


def _unreadable(error: ProtocolError) -> FilterEvaluationError:
    return FilterEvaluationError(f"the properties of the message cannot be read: {error}")


def text_of(value: Any) -> str | None:
    """Return an id or an address as text; ids may be strings, UUIDs, numbers or bytes."""
    if value is None or type(value) is str:
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def comparable(value: Any) -> Any:
    """Return the value that filters compare: .NET's described time types become Python's.

    A known descriptor around a value of another type, such as a double that is no number, stays as it is, and is
    unknown to every operator.
    """
    if type(value) is not Described:
        return value
    try:
        kind, convert = _DESCRIBED[value.descriptor]
    except (KeyError, TypeError):  # another descriptor, or one that cannot be hashed
        return value
    inner = value.value
    return convert(inner) if isinstance(inner, kind) and type(inner) is not bool else value


_DESCRIBED: dict[Any, tuple[type, Callable[[Any], Any]]] = {
    TIMESPAN: (int, lambda ticks: timedelta(microseconds=ticks // 10)),
    "com.microsoft:datetime-offset": (int, lambda ticks: Timestamp((ticks - _UNIX_EPOCH_TICKS) // 10_000)),
    "com.microsoft:uri": (str, str),
}
"Type of the value and its conversion by descriptor. The 64 bits of any AMQP integer fit into both time types."


def _time(ms: int) -> Timestamp | None:
    return Timestamp(ms) if ms else None


def _expires(view: MessageView) -> Timestamp | None:
    return Timestamp(view.enqueued_ms + view.ttl_ms) if view.ttl_ms else None


SYSTEM: dict[str, Callable[[MessageView], Any]] = {
    "messageid": lambda view: view.text(MESSAGE_ID),
    "to": lambda view: view.text(TO),
    "label": lambda view: view.text(SUBJECT),
    "subject": lambda view: view.text(SUBJECT),
    "replyto": lambda view: view.text(REPLY_TO),
    "correlationid": lambda view: view.text(CORRELATION_ID),
    "contenttype": lambda view: view.text(CONTENT_TYPE),
    "sessionid": lambda view: view.text(SESSION_ID),
    "replytosessionid": lambda view: view.text(REPLY_TO_SESSION_ID),
    "partitionkey": lambda view: view.annotation_text(PARTITION_KEY),
    "viapartitionkey": lambda view: view.annotation_text(VIA_PARTITION_KEY),
    "timetolive": lambda view: timedelta(milliseconds=view.ttl_ms) if view.ttl_ms else TTL_UNLIMITED,
    "enqueuedtimeutc": lambda view: _time(view.enqueued_ms),
    "scheduledenqueuetimeutc": lambda view: _time(view.scheduled_ms),
    "expiresatutc": _expires,
    "sequencenumber": lambda view: Long(view.seq),
    "enqueuedsequencenumber": lambda view: Long(view.seq),
    "deliverycount": lambda view: Int(view.delivery_count),
    "size": lambda view: Long(len(view.body)),
}
"Readers of the system properties by lower-case name; a reader gives None when the message has no such property."
