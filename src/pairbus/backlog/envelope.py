"""Backlog messages: `wrap` makes one of a message, `unwrap` restores the message. Both work on encoded bytes.

| original                                 | in the backlog message                                        |
| ---------------------------------------- | ------------------------------------------------------------- |
| properties.group-id                      | null; x-ms-sessionid, the same encoded string                 |
| header.ttl                               | null; x-ms-timetolive, long, milliseconds                     |
| annotation x-opt-scheduled-enqueue-time  | removed; x-ms-scheduledenqueuetimeutc, the same encoded value |
| its destination                          | x-ms-path                                                     |
| all other fields                         | the same bytes                                                |

Laws of this file.
 1. Fields that are not named above are cut out and put back as bytes, never decoded and encoded again: a codec would
    change the width of integers and the type of timestamps.
 2. unwrap(wrap(x)).payload == x. Only the order of annotations may change, which has no meaning: the scheduled time
    comes first, where the SDK writes it.
 3. Fields that the service has added meanwhile (sequence numbers, lock times, a delivery count) are removed.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    section,
    sections,
)
from pairbus.amqp.types import Timestamp, UByte, decode, encode, encode_long, encode_string, encode_symbol, encode_uint
from pairbus.backlog.aliases import (
    COUNTER,
    FIRST_ATTEMPT,
    FORM,
    MISSING_SINCE,
    PATH,
    RESERVED,
    SCHEDULED,
    SENDER,
    SESSION_ID,
    TIME_TO_LIVE,
    AliasValues,
    InvalidAlias,
    read,
)
from pairbus.backlog.splice import (
    NULL,
    Span,
    field_span,
    is_wide,
    list_fields,
    list_value,
    map_value,
    map_without,
    with_field,
)
from pairbus.pairing.options import TtlPolicy
from pairbus.settings.durations import UNLIMITED_MS

__all__ = [
    "COUNTER", "FIRST_ATTEMPT", "FORM", "PATH", "RESERVED", "SCHEDULED", "SENDER", "SESSION_ID", "TIME_TO_LIVE",
    "Envelope", "Home", "Memory", "Spoiled", "Wrapper", "aliases_alone", "enqueued_ms_of",
    "home_payload", "overhead", "redriven", "unwrap", "wrap",
]  # fmt: skip

UNDECODABLE, NO_DESTINATION, INVALID_ALIAS = "UndecodableMessage", "NoDestination", "InvalidAlias"
EXPIRED = "TTLExpiredException"  # the service's own word for it
REMEMBERED = "MaybeRemembered"
ORIGINAL_ID = "x-pairbus-original-message-id"
"Property with the first id of a dead letter that was re-driven under a new one. Not reserved: it may be sent on."

SERVICE_OWNED = frozenset(
    f"x-opt-{name}".encode()
    for name in (
        "sequence-number",
        "enqueued-time",
        "locked-until",
        "enqueue-sequence-number",
        "message-state",
        "deadletter-source",
        "lock-token",
        "partition-id",
    )
)
DEAD_LETTER_NAMES = frozenset({b"DeadLetterReason", b"DeadLetterErrorDescription", MISSING_SINCE.encode()})
_ALIASES = frozenset(name.encode() for name in RESERVED)
_SEQUENCE_NUMBER = b"x-opt-sequence-number"
_SCHEDULED_TIME = b"x-opt-scheduled-enqueue-time"
_SCHEDULED_KEY = encode_symbol(_SCHEDULED_TIME.decode())
_KEYS = {name: encode_string(name) for name in RESERVED}
_TTL, _DELIVERY_COUNT, _GROUP_ID = 2, 4, 10  # places of the fields in their lists
_UINT_MAX = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Envelope:
    """The aliases that `wrap` adds to a message beside those of its own fields."""

    path: str
    "The entity of the primary for which the message was sent."
    first_attempt_ms: int | None = None
    "Time of the first attempt on the primary; set only when the primary may have stored the message."
    sender: str | None = None
    "With `counter`, the place of the message among those of its sender; only where order is kept."
    counter: int | None = None


class Home(NamedTuple):
    """A message in the form in which it goes home, and the aliases of its backlog message."""

    path: str
    payload: bytes
    "Encoded message, ready to be sent, with its whole time to live."
    message_id: str | None = None
    session_id: str | None = None
    ttl_ms: int | None = None
    scheduled_ms: int | None = None
    first_attempt_ms: int | None = None
    sender: str | None = None
    counter: int | None = None
    enqueued_ms: int | None = None
    "Time at which the backlog queue stored the message."
    locked_until_ms: int | None = None
    missing_since_ms: int | None = None
    "Time at which a syphon first found the destination missing."


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A message that cannot go home; both texts are for the operator who finds it among the dead letters."""

    reason: str
    description: str
    message_id: str | None = None
    home: Home | None = None
    "The message in the form in which it would have gone home, when it is too late for that."


# ── to a backlog queue ──


def wrap(payload: bytes, envelope: Envelope) -> bytes:
    """Return the backlog message. ProtocolError when `payload` is not a message; the caller must check names."""
    aliases, own, slot, at = [_KEYS[PATH], encode_string(envelope.path)], None, 0, 0
    out: list[bytes] = []
    for code, start, value_at, end in sections(payload):
        if code >= APPLICATION_PROPERTIES:
            if code == APPLICATION_PROPERTIES:
                own = Span(start, value_at, end)
            break
        slot = end
        if code in (HEADER, PROPERTIES):
            index = _TTL if code == HEADER else _GROUP_ID
            field_at = field_span(payload, value_at, end, index)
            if field_at is not None:
                raw = payload[field_at[0] : field_at[1]]
                aliases += (_KEYS[SESSION_ID], raw) if index == _GROUP_ID else (_KEYS[TIME_TO_LIVE], _long(raw))
                out += (payload[at:value_at], with_field(payload, value_at, end, index, NULL))
                at = end
        elif code == MESSAGE_ANNOTATIONS and _SCHEDULED_TIME in payload[value_at:end]:
            kept, count, cut = map_without(payload, value_at, end, frozenset({_SCHEDULED_TIME}))
            if cut and cut[_SCHEDULED_TIME] != NULL:
                aliases += (_KEYS[SCHEDULED], cut[_SCHEDULED_TIME])
                out += (payload[at:value_at], map_value(kept, count, wide=is_wide(payload, value_at)))
                at = end
    aliases += _own_aliases(envelope)
    out.append(payload[at : slot if own is None else own.start])
    out.append(_with_aliases(payload, own, aliases))
    out.append(payload[slot if own is None else own.end :])
    return b"".join(out)


class Wrapper:
    """`wrap` for messages of one path: a message is examined once for all messages of the same form.

    The form is all bytes before the body, except the message id and the application's properties. The SDK writes short
    properties first, and the id first in them; other messages are wrapped one by one.
    """

    __slots__ = ("_aliases", "_envelope", "_known", "_pairs", "_section")

    def __init__(self, envelope: Envelope) -> None:
        aliases = [_KEYS[PATH], encode_string(envelope.path), *_own_aliases(envelope)]
        self._envelope = envelope
        self._aliases, self._pairs = b"".join(aliases), len(aliases)
        self._section = aliases_alone(envelope)
        self._known: dict[bytes, int] = {}
        "Form → code of the section behind the properties, 0 when the message needs `wrap`."

    def wrap(self, encoded: bytes | bytearray) -> bytes:
        """Return the backlog message, as the function `wrap` does."""
        payload = bytes(encoded)
        if payload[:4] != _SHORT_PROPERTIES or payload[6] != _SHORT_STRING:
            return wrap(payload, self._envelope)
        end = 5 + payload[4]
        form = payload[5:6] + payload[8 + payload[7] : end + 3]
        following = self._known.get(form)
        if following is None:
            if len(self._known) >= _FORMS_MAX:
                self._known.clear()
            following = self._known[form] = _following(payload, end)
        if following > APPLICATION_PROPERTIES:
            return payload[:end] + self._section + payload[end:]
        if following == APPLICATION_PROPERTIES and payload[end + 3] == _SHORT_MAP and payload[end + 5]:
            size, count = payload[end + 4] + len(self._aliases), payload[end + 5] + self._pairs
            stop = end + 5 + payload[end + 4]
            if size <= 0xFF and count <= 0xFF and stop < len(payload):
                own = payload[end + 6 : stop] + self._aliases
                return payload[: end + 4] + bytes((size, count)) + own + payload[stop:]
        return wrap(payload, self._envelope)


_FORMS_MAX = 256  # forms that a wrapper remembers; with correlation ids every message has another form
_SHORT_PROPERTIES, _SHORT_STRING, _SHORT_MAP = b"\x00\x53\x73\xc0", 0xA1, 0xC1


def _following(payload: bytes, end: int) -> int:
    """Return the code of the section behind properties without a session; 0 when the message needs `wrap`."""
    if payload[end : end + 2] != b"\x00\x53" or field_span(payload, 3, end, _GROUP_ID) is not None:
        return 0
    return payload[end + 2]


def aliases_alone(envelope: Envelope) -> bytes:
    """Return the section of application properties for a message that has none, and no fields to move into aliases."""
    pairs = [_KEYS[PATH], encode_string(envelope.path), *_own_aliases(envelope)]
    return section(APPLICATION_PROPERTIES, map_value(b"".join(pairs), len(pairs)))


def _long(encoded_uint: bytes) -> bytes:
    value: bytes = encode_long(int(decode(encoded_uint)[0]))
    return value


def _own_aliases(envelope: Envelope) -> list[bytes]:
    pairs = []
    if envelope.first_attempt_ms is not None:
        pairs += [_KEYS[FIRST_ATTEMPT], encode(Timestamp(envelope.first_attempt_ms))]
    if envelope.sender is not None and envelope.counter is not None:
        pairs += [_KEYS[SENDER], encode_string(envelope.sender), _KEYS[COUNTER], encode_long(envelope.counter)]
    return pairs


def _with_aliases(payload: bytes, own: Span | None, aliases: list[bytes]) -> bytes:
    """Return the application properties with the aliases behind the application's own."""
    if own is None:
        return section(APPLICATION_PROPERTIES, map_value(b"".join(aliases), len(aliases)))
    kept, count, _ = map_without(payload, own.value_at, own.end, frozenset())
    wide = is_wide(payload, own.value_at)
    if not count or (wide and map_value(kept, count)[0] != payload[own.value_at]):
        # Otherwise `unwrap` would give the section its shortest form, and leave out an empty one.
        aliases = [*aliases, _KEYS[FORM], encode(UByte(payload[own.value_at]))]
    encoded = map_value(kept + b"".join(aliases), count + len(aliases), wide=wide)
    return payload[own.start : own.value_at] + encoded


def overhead(envelope: Envelope) -> int:
    """Return the number of bytes that `wrap` adds at most."""
    pairs = [_KEYS[PATH], encode_string(envelope.path), *_own_aliases(envelope)]
    moved = sum(len(_KEYS[name]) for name in (SESSION_ID, TIME_TO_LIVE, SCHEDULED, FORM))
    return sum(map(len, pairs)) + moved + _HEADS_MAX


_HEADS_MAX = (
    3 + 9 + 9 + 2 + 3
)  # a section of its own, or a map that turns wide; a long for a uint; the form; three nulls


# ── home ──


def unwrap(payload: bytes) -> Home | Spoiled:
    """Return the message as it was before `wrap`, and its destination."""
    try:
        parts = _Parts(payload)
        own = parts.spans.get(APPLICATION_PROPERTIES)
        aliases, cut, former = _ALONE if own is None else _opened(payload[own[1] : own[3]], own[2] - own[1])
        if isinstance(aliases, InvalidAlias):
            reason = NO_DESTINATION if aliases.name == PATH else INVALID_ALIAS
            return Spoiled(reason, f"{aliases.description} {WHAT_TO_DO}", parts.message_id())
        parts.new[APPLICATION_PROPERTIES] = former
        ttl = NULL
        if aliases.ttl_ms is not None and aliases.ttl_ms < UNLIMITED_MS:
            ttl = encode_uint(min(aliases.ttl_ms, _UINT_MAX))
        parts.set_head(ttl, b"" if aliases.scheduled_ms is None else _SCHEDULED_KEY + cut[SCHEDULED.encode()])
        if aliases.session_id is not None:
            parts.set_group_id(cut[SESSION_ID.encode()])
        return _home(aliases, parts)
    except (ProtocolError, IndexError) as error:
        return Spoiled(UNDECODABLE, f"The message cannot be read: {error}. {WHAT_TO_DO}")


WHAT_TO_DO = "Read it in the dead-letter queue and send it to its destination by hand, or discard it."


class Memory(NamedTuple):
    """Memory of a destination that detects duplicates, and would drop a message whose id it remembers."""

    now_ms: int
    window_ms: int
    new_ids_of: str | None
    "The queue of the dead letters, when letters that the destination may remember get a new id; else None."


def redriven(payload: bytes, path: str, memory: Memory | None = None) -> Home | Spoiled:
    """Return a dead letter in the form in which it goes to `path`: without the properties that dead-lettering added.

    It needs no aliases. Spoiled when the destination may remember it, unless it gets a new id. The new id of a letter
    is always the same, so that a letter that is sent twice is stored once.
    """
    try:
        parts = _Parts(payload)
        own = parts.spans.get(APPLICATION_PROPERTIES)
        if own is not None:
            kept, count, cut = map_without(payload, own[2], own[3], DEAD_LETTER_NAMES)
            if cut:
                parts.new[APPLICATION_PROPERTIES] = payload[own[1] : own[2]] + map_value(kept, count) if count else b""
        parts.set_head(None, b"")
        if memory is not None and parts.message_id():
            enqueued_ms = parts.enqueued_ms if parts.enqueued_ms is not None else memory.now_ms
            until_ms = enqueued_ms + memory.window_ms
            if memory.now_ms < until_ms:
                if memory.new_ids_of is None:
                    return Spoiled(REMEMBERED, _remembered_text(path, until_ms - memory.now_ms), parts.message_id())
                parts.set_new_id(memory.new_ids_of)
        return _home(AliasValues(path), parts)
    except (ProtocolError, IndexError) as error:
        return Spoiled(UNDECODABLE, f"The message cannot be read: {error}. {WHAT_TO_DO}")


def _remembered_text(path: str, left_ms: int) -> str:
    minutes = -(-left_ms // 60_000)  # so that messages of the same minute have the same text
    left = f"{minutes} more minutes" if minutes <= 120 else f"{-(-minutes // 60)} more hours"
    return (
        f"'{path}' may remember its message id for {left}, and would drop it as a duplicate."
        " Re-drive it then, or now under a new id (--new-ids)."
    )


def home_payload(home: Home, ttl_policy: TtlPolicy, now_ms: int) -> bytes | Spoiled:
    """Return the payload to send. With `deduct`, its time in the backlog is taken off its time to live: from
    the moment on at which it could have been received."""
    sent_ms = home.first_attempt_ms if home.first_attempt_ms is not None else home.enqueued_ms
    if ttl_policy == "restore" or home.ttl_ms is None or sent_ms is None:
        return home.payload
    delayed_ms = max(now_ms - max(sent_ms, home.scheduled_ms or 0), 0)
    if delayed_ms >= home.ttl_ms:
        text = f"Its time to live of {home.ttl_ms / 1000:g} s ended during {delayed_ms / 1000:.1f} s in the backlog."
        return Spoiled(EXPIRED, text, home.message_id, home)
    parts = _Parts(home.payload)
    parts.set_header(encode_uint(min(home.ttl_ms - delayed_ms, _UINT_MAX)))
    return parts.join()


def enqueued_ms_of(payload: bytes) -> int | None:
    """Return the time when the queue stored the message; None when the message does not have it."""
    at = payload.find(_ENQUEUED, 0, _HEAD_MAX)
    if at >= 0:
        return int.from_bytes(payload[at + len(_ENQUEUED) : at + len(_ENQUEUED) + 8], "big", signed=True)
    try:
        parts = _Parts(payload)
        parts.set_head(None, b"")
        return parts.enqueued_ms
    except (ProtocolError, IndexError):
        return None


_ENQUEUED = b"\xa3\x13x-opt-enqueued-time\x83"
_HEAD_MAX = 512  # bytes before the sender's own annotations; there are far fewer


def _home(aliases: AliasValues, parts: _Parts) -> Home:
    path, session_id, ttl_ms, scheduled_ms, first_attempt_ms, sender, counter, _, missing_since_ms = aliases
    payload, message_id = parts.join(), parts.message_id()
    enqueued_ms, locked_ms = parts.enqueued_ms, parts.locked_until_ms
    return Home(
        *(path, payload, message_id, session_id, ttl_ms, scheduled_ms, first_attempt_ms, sender, counter),
        *(enqueued_ms, locked_ms, missing_since_ms),
    )


@lru_cache(maxsize=256)  # × 64 KB of properties at worst; messages of one sender mostly have the same ones
def _opened(section_bytes: bytes, value_at: int) -> tuple[AliasValues | InvalidAlias, dict[bytes, bytes], bytes]:
    """Return (values of the aliases, the encoded aliases, the section before `wrap`, empty when there was none)."""
    kept, count, cut = map_without(section_bytes, value_at, len(section_bytes), _ALIASES)
    aliases = read(cut)
    form = None if isinstance(aliases, InvalidAlias) else aliases.form
    if not count and form is None:
        return aliases, cut, b""
    return aliases, cut, section_bytes[:value_at] + map_value(kept, count, wide=form == 0xD1)


_ALONE: tuple[AliasValues | InvalidAlias, dict[bytes, bytes], bytes] = (read({}), {}, b"")


class _Parts:
    """A message in sections, some of which are replaced (`new`) before it is put together again."""

    __slots__ = ("_sections", "enqueued_ms", "locked_until_ms", "new", "payload", "spans")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self._sections = sections(payload)
        self.spans = {row[0]: row for row in self._sections}
        self.new: dict[int, bytes] = {}
        self.enqueued_ms: int | None = None
        self.locked_until_ms: int | None = None

    def join(self) -> bytes:
        payload, out, at = self.payload, [], 0
        for code in sorted(self.new):
            span = self.spans.get(code)
            if span is None:
                start = end = next((row[1] for row in self._sections if row[0] > code), len(payload))
            else:
                start, end = span[1], span[3]
            out += [payload[at:start], self.new[code]]
            at = end
        out.append(payload[at:])
        return b"".join(out)

    def set_head(self, ttl: bytes | None, scheduled: bytes) -> None:
        """Remove the fields of the service; add the time to live (None: as it is) and the pair of the scheduled time.

        Mostly header and annotations have only fields of the service, and one regular expression matches them.
        """
        span = self.spans.get(MESSAGE_ANNOTATIONS)
        usual = _SERVICE_HEAD.fullmatch(self.payload, 0, span[3]) if span is not None else None
        if usual is None:
            self.set_header(ttl)
            self._set_annotations(scheduled)
            return
        enqueued, locked = usual.groups()
        self.enqueued_ms = int.from_bytes(enqueued, "big", signed=True) if enqueued else None
        self.locked_until_ms = int.from_bytes(locked, "big", signed=True) if locked else None
        self.new[HEADER] = section(HEADER, with_field(b"\x45", 0, 1, _TTL, ttl)) if ttl not in (None, NULL) else b""
        self.new[MESSAGE_ANNOTATIONS] = section(MESSAGE_ANNOTATIONS, map_value(scheduled, 2)) if scheduled else b""

    def set_header(self, ttl: bytes | None) -> None:
        span = self.spans.get(HEADER)
        if span is None:
            if ttl is not None and ttl != NULL:
                self.new[HEADER] = section(HEADER, with_field(b"\x45", 0, 1, _TTL, ttl))
            return
        _, start, value_at, end = span
        fields = list_fields(self.payload, value_at, end)
        before = list(fields)
        if len(fields) > _DELIVERY_COUNT:
            fields[_DELIVERY_COUNT] = NULL
        if ttl is not None and (ttl != NULL or len(fields) > _TTL):
            fields += [NULL] * (_TTL + 1 - len(fields))
            fields[_TTL] = ttl
        if fields != before:
            says_nothing = all(field == NULL for field in fields)
            again = self.payload[start:value_at] + list_value(fields, wide=is_wide(self.payload, value_at))
            self.new[HEADER] = b"" if says_nothing else again

    def _set_annotations(self, scheduled: bytes) -> None:
        for code, before in ((DELIVERY_ANNOTATIONS, b""), (MESSAGE_ANNOTATIONS, scheduled)):
            span = self.spans.get(code)
            if span is None:
                if before:
                    self.new[code] = section(code, map_value(before, 2))
                continue
            _, start, value_at, end = span
            kept, count, cut = map_without(self.payload, value_at, end, SERVICE_OWNED)
            self.enqueued_ms = _milliseconds(cut, b"x-opt-enqueued-time", self.enqueued_ms)
            self.locked_until_ms = _milliseconds(cut, b"x-opt-locked-until", self.locked_until_ms)
            count += 2 * bool(before)
            if cut or before:
                again = map_value(before + kept, count, wide=is_wide(self.payload, value_at))
                self.new[code] = self.payload[start:value_at] + again if count else b""

    def set_group_id(self, encoded: bytes) -> None:
        span = self.spans.get(PROPERTIES)
        if span is None:
            self.new[PROPERTIES] = section(PROPERTIES, with_field(b"\x45", 0, 1, _GROUP_ID, encoded))
            return
        _, start, value_at, end = span
        self.new[PROPERTIES] = self.payload[start:value_at] + with_field(
            self.payload, value_at, end, _GROUP_ID, encoded
        )

    def set_new_id(self, origin: str) -> None:
        """Set a new message id, made of the facts that identify this letter; the old id becomes a property."""
        _, start, value_at, end = self.spans[PROPERTIES]
        field_at = field_span(self.payload, value_at, end, 0)
        assert field_at is not None
        old = self.payload[field_at[0] : field_at[1]]
        number = b""
        if (annotations := self.spans.get(MESSAGE_ANNOTATIONS)) is not None:
            _, _, cut = map_without(self.payload, annotations[2], annotations[3], frozenset({_SEQUENCE_NUMBER}))
            number = cut.get(_SEQUENCE_NUMBER, b"")
        letter = b"%s %d %s %s" % (origin.lower().encode(), self.enqueued_ms or 0, number, old)
        new = encode_string(hashlib.sha256(letter).hexdigest()[:32])
        self.new[PROPERTIES] = self.payload[start:value_at] + with_field(self.payload, value_at, end, 0, new)
        self._add_property(ORIGINAL_ID, old)

    def _add_property(self, name: str, encoded: bytes) -> None:
        """Add a property to those of the application, unless it is there."""
        own, pair = self.new.get(APPLICATION_PROPERTIES), encode_string(name) + encoded
        if own is None and (span := self.spans.get(APPLICATION_PROPERTIES)) is not None:
            own = self.payload[span[1] : span[3]]
        if not own:
            self.new[APPLICATION_PROPERTIES] = section(APPLICATION_PROPERTIES, map_value(pair, 2))
            return
        [(_, _, value_at, end)] = sections(own)
        kept, count, cut = map_without(own, value_at, end, frozenset({name.encode()}))
        if not cut:
            wide = is_wide(own, value_at)
            self.new[APPLICATION_PROPERTIES] = own[:value_at] + map_value(kept + pair, count + 2, wide=wide)

    def message_id(self) -> str | None:
        span = self.spans.get(PROPERTIES)
        field_at = field_span(self.payload, span[2], span[3], 0) if span is not None else None
        if field_at is None:
            return None
        at, end = field_at
        if self.payload[at] == 0xA1:
            return self.payload[at + 2 : end].decode("utf-8", "replace")
        value, _ = decode(self.payload, at)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# A header with only a delivery count, and only annotations of the service.
_SERVICE_HEAD = re.compile(
    rb"(?s)\x00\x53\x70\xc0.\x05@@@@(?:\x43|\x52.|\x70....)\x00\x53\x72\xc1.[\x04\x06]"
    rb"(?:\xa3\x15x-opt-sequence-number\x81.{8}"
    rb"|\xa3\x13x-opt-enqueued-time\x83(.{8})"
    rb"|\xa3\x12x-opt-locked-until\x83(.{8})){2,3}"
)


def _milliseconds(cut: dict[bytes, bytes], name: bytes, otherwise: int | None) -> int | None:
    if name not in cut:
        return otherwise
    value, _ = decode(cut[name])
    return int(value) if isinstance(value, int) else otherwise
