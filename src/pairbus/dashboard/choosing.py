"""Reads the choice of a request, and decides how much of each message the page shows."""

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


def choice_of(body: Mapping[str, Any]) -> Choice:
    """Read a choice: where (SQL filter), grep (text), session, reasons, numbers, first and last; ConfigError.

    Without any condition every message is chosen. A condition that is empty is an error, not a condition less.
    """
    conditions: dict[str, Any] = {}
    for name, field in _TEXTS.items():
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r:.60}; a text is needed")
        if not value:
            raise ConfigError(f"{name} is empty: leave it out, or say what to look for")
        conditions[field] = value
    for name, field in _NUMBERS.items():
        value = body.get(name)
        if value is not None:
            conditions[field] = sequence_number(name, value)
    numbers, reasons = body.get("numbers"), body.get("reasons")
    if numbers is not None:
        if not isinstance(numbers, list) or not numbers:
            raise ConfigError("numbers must be a list of sequence numbers")
        conditions["numbers"] = [sequence_number("numbers", number) for number in numbers]
    if reasons is not None:
        conditions["reasons"] = reasons_of(reasons)
    return Choice(**conditions)


def named_choice(body: Mapping[str, Any]) -> Choice:
    """Read the choice of a verb that takes messages away: conditions, numbers, or {"all": true}; ConfigError for none.

    `last` limits each of them and is no choice by itself.
    """
    choice = choice_of(body)
    has_conditions = not choice.without_end()[0].is_all
    if has_conditions == (body.get("all") is True) or body.get("all") not in (None, True):
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
    message = described(payload)
    row = {name: message.get(name) for name in LISTED} | {name: message[name] for name in EXTRA if name in message}
    row["sequence_number"] = _text(message.get("sequence_number"))
    if not has_body:
        row.pop("size")
        return row
    body = message.get("body")
    row["body_type"] = message.get("body_type")
    row["body"] = body if body is None else body[:PREFIX]
    row["is_cut"] = body is not None and len(body) > PREFIX
    return row


def whole_of(payload: bytes) -> dict[str, Any]:
    """Describe a message in full; of a large body only the beginning."""
    message = described(payload)
    message["sequence_number"] = _text(message.get("sequence_number"))
    body = message.get("body")
    if body is not None and len(body) > BODY_SHOWN:
        message |= {"body": body[:BODY_SHOWN], "is_cut": True}
    return message


def _text(number: Any) -> str | None:
    """Write a sequence number as a text: JavaScript rounds numbers from 2⁵³ on, which partitioned entities have."""
    return None if number is None else str(number)
