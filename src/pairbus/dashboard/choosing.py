"""Messages for the page: the choice of a request, and how much of each message is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pairbus.errors import ConfigError
from pairbus.explorer import Choice, described
from pairbus.explorer.pages import NUMBER_MAX

PREFIX = 200  # characters of a body in a list
BODY_SHOWN = 64 * 1024  # characters of a body in the view of one message; the rest is a download
LISTED = ("sequence_number", "message_id", "subject", "session_id", "enqueued_time", "state", "delivery_count", "size")
EXTRA = ("dead_letter_reason", "scheduled_enqueue_time", "undecodable")

_TEXTS = {"where": "where", "grep": "text", "session": "session"}
_NUMBERS = {"first": "first", "last": "last"}


def choice_of(asked: Mapping[str, Any]) -> Choice:
    """Read a choice: where (SQL filter), grep (text), session, reasons, numbers, first and last; ConfigError.

    Without any condition every message is chosen. A condition that is empty is an error, not a condition less.
    """
    given: dict[str, Any] = {}
    for name, field in _TEXTS.items():
        value = asked.get(name)
        if value is None:
            continue
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r:.60}; a text is needed")
        if not value:
            raise ConfigError(f"{name} is empty: leave it out, or say what to look for")
        given[field] = value
    for name, field in _NUMBERS.items():
        value = asked.get(name)
        if value is not None:
            given[field] = sequence_number(name, value)
    numbers, reasons = asked.get("numbers"), asked.get("reasons")
    if numbers is not None:
        if not isinstance(numbers, list) or not numbers:
            raise ConfigError("numbers must be a list of sequence numbers")
        given["numbers"] = [sequence_number("numbers", number) for number in numbers]
    if reasons is not None:
        given["reasons"] = reasons_of(reasons)
    return Choice(**given)


def named_choice(asked: Mapping[str, Any]) -> Choice:
    """Read the choice of a verb that takes messages away: conditions, numbers, or {"all": true}; ConfigError for none.

    `last` limits each of them and is no choice by itself.
    """
    choice = choice_of(asked)
    has_conditions = not choice.without_end()[0].is_all
    if has_conditions == (asked.get("all") is True) or asked.get("all") not in (None, True):
        names = ", ".join((*_TEXTS, "first", "numbers"))
        raise ConfigError(f'say which messages: by {names}, or "all": true for every message')
    return choice


def reasons_of(reasons: Any) -> list[str]:
    """Read the reasons of dead letters; ConfigError."""
    if not isinstance(reasons, list) or not reasons or not all(isinstance(one, str) for one in reasons):
        raise ConfigError("reasons must be a list of texts, with at least one")
    return reasons


def sequence_number(name: str, value: Any) -> int:
    """Read a sequence number, also as a text: JavaScript cannot write all of them as numbers. ConfigError."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 19:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        raise ConfigError(f"{name} is {value!r:.60}; a sequence number is needed")
    return value


def row_of(payload: bytes, *, has_body: bool) -> dict[str, Any]:
    """Describe a message for a list, with the beginning of its body."""
    shown = described(payload)
    row = {name: shown.get(name) for name in LISTED} | {name: shown[name] for name in EXTRA if name in shown}
    row["sequence_number"] = _text(shown.get("sequence_number"))
    if not has_body:
        row.pop("size")
        return row
    body = shown.get("body")
    row["body_type"] = shown.get("body_type")
    row["body"] = body if body is None else body[:PREFIX]
    row["is_cut"] = body is not None and len(body) > PREFIX
    return row


def whole_of(payload: bytes) -> dict[str, Any]:
    """Describe a message in full; of a large body only the beginning."""
    shown = described(payload)
    shown["sequence_number"] = _text(shown.get("sequence_number"))
    body = shown.get("body")
    if body is not None and len(body) > BODY_SHOWN:
        shown |= {"body": body[:BODY_SHOWN], "is_cut": True}
    return shown


def _text(number: Any) -> str | None:
    """Write a sequence number as a text: JavaScript rounds numbers from 2⁵³ on, which partitioned entities have."""
    return None if number is None else str(number)
