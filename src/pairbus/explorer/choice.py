"""Chooses messages by text, by an SQL filter, by session, by state and by sequence number."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import HEADER, PROPERTIES, Message, in_order
from pairbus.amqp.types import decode, encode
from pairbus.errors import ConfigError
from pairbus.explorer.message import (
    ENQUEUED_TIME,
    OWNED_BY_THE_SERVICE,
    REASON,
    SCHEDULED_TIME,
    SEQUENCE_NUMBER,
    STATE,
    STATES,
    annotations_of,
)
from pairbus.filters import FilterEvaluationError, MessageView, SqlFilter, compile_filter

CONDITIONS = ("where", "text", "session", "reasons", "numbers")


@dataclass(slots=True)
class Choice:
    """A message must meet all of these conditions. Without any, every message is chosen.

    A condition that is empty is a ConfigError, not a condition less: it may be a variable that nobody has set.

    `where` is an SQL filter as in rules; FilterSyntaxError when it is wrong. A message for which it cannot be
    evaluated is not chosen; it is counted.
    """

    where: str | None = None
    text: str | None = None
    "Text, in any case, in the body, the properties or the names and values of the application properties."
    session: str | None = None
    reasons: Collection[str] | None = None
    "Reasons of dead letters; the empty text stands for letters without one."
    numbers: Collection[int] | None = None
    "Sequence numbers."
    first: int = 0
    last: int | None = None
    "Lowest and highest sequence number."
    unevaluable: int = 0
    "Messages for which the SQL filter could not be evaluated."
    _test: Callable[[MessageView], bool | None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        for name in CONDITIONS:
            value = getattr(self, name)
            if value is not None and not value:
                raise ConfigError(f"{name} is empty: leave it out, or say what to look for")
        if self.where is not None:
            self._test = compile_filter(SqlFilter(self.where))
        if self.numbers is not None:
            self.numbers = frozenset(self.numbers)

    @property
    def is_all(self) -> bool:
        """True when every message is chosen."""
        conditions = (self.where, self.text, self.session, self.reasons, self.numbers, self.last)
        return self.first <= 0 and all(condition is None for condition in conditions)

    def without_end(self) -> tuple[Choice, int | None]:
        """Split a choice that only ends at a number into a choice of every message, and that number.

        Verbs that know the number need no search for the messages up to it.
        """
        conditions = (self.where, self.text, self.session, self.reasons, self.numbers)
        if self.first > 0 or any(condition is not None for condition in conditions):
            return self, None
        return Choice(), self.last

    @property
    def needs_bodies(self) -> bool:
        return self.text is not None

    def takes(self, payload: bytes) -> bool:
        """Tell whether a message that was peeked or received is chosen."""
        annotations = annotations_of(payload)
        number = annotations.get(SEQUENCE_NUMBER)
        if not self._takes_number(int(number) if isinstance(number, int) else 0):
            return False
        try:
            return self._takes_content(payload, annotations)
        except ProtocolError:
            return False  # not a message: it can be chosen only by its number

    def _takes_number(self, number: int) -> bool:
        if number < self.first or (self.last is not None and number > self.last):
            return False
        return self.numbers is None or number in self.numbers

    def _takes_content(self, payload: bytes, annotations: dict[Any, Any]) -> bool:
        if not (self.session is None and self.reasons is None and self.text is None):
            message = Message.decode(payload)
            session = None if message.properties is None else message.properties.group_id
            if (
                (self.session is not None and session != self.session)
                or (self.reasons is not None and str(message.property(REASON) or "") not in self.reasons)
                or (self.text is not None and self.text.lower() not in searched_text(message))
            ):
                return False
        if self._test is None:
            return True
        try:
            return self._test(view_of(payload, annotations)) is True
        except FilterEvaluationError:
            self.unevaluable += 1
            return False


def searched_text(message: Message) -> str:
    """Return all texts of a message in which a text is searched, in lower case."""
    values_searched: list[Any] = []
    if message.properties is not None:
        values = (getattr(message.properties, name) for name, *_ in message.properties.ROWS)
        values_searched += [value for value in values if value is not None]
    for name, value in (message.application_properties or {}).items():
        values_searched += (name, value)
    values_searched.append(message.value if message.has_value else message.sequences or b"".join(message.data))
    return "\n".join(_text(value) for value in values_searched).lower()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def view_of(payload: bytes, annotations: dict[Any, Any] | None = None) -> MessageView:
    """Return a message that was peeked, received or is to be sent as filters see it. ProtocolError: not a message."""
    payload, sections = in_order(payload)
    annotations = annotations_of(payload) if annotations is None else annotations
    own = {name: value for name, value in annotations.items() if name not in OWNED_BY_THE_SERVICE}
    ttl_ms, deliveries, bare_at = None, 0, len(payload)
    for code, start, value_at, _ in sections:
        if code == HEADER:
            header = [*decode(payload, value_at)[0], None, None, None, None, None]
            ttl_ms, deliveries = header[2], header[4] or 0
        elif code >= PROPERTIES:
            bare_at = start
            break
    return MessageView(
        payload[bare_at:],
        b"".join(encode(name) + encode(value) for name, value in own.items()),
        ttl_ms=ttl_ms,
        enqueued_ms=_whole(annotations.get(ENQUEUED_TIME)),
        seq=_whole(annotations.get(SEQUENCE_NUMBER)),
        scheduled_ms=_whole(annotations.get(SCHEDULED_TIME)),
        delivery_count=deliveries,
    )


def state_of(payload: bytes) -> str:
    """Return active, deferred or scheduled."""
    return STATES.get(_whole(annotations_of(payload).get(STATE)), "active")


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, int) else 0
