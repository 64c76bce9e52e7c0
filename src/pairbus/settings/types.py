"""Types of settings: how a value of each is written in XML and in the SDK's objects.

A value has one form inside the product, which is the field of a description: milliseconds, a number, a flag or a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pairbus.settings.durations import UNLIMITED, format_duration, parse_duration, parse_limited_duration

STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
_AUTHORITY = re.compile(r"^[a-z][a-z0-9+.-]*://[^/]*/?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SettingType:
    """One type, with its ways of writing. Readers raise ValueError, for a type of Python TypeError."""

    word: str
    "Word in forms of the page and in errors."
    json_type: type
    "Type in a configuration file."
    read: Callable[[str], Any]
    "Text of an XML element → field of a description."
    write: Callable[[Any], Any] = lambda value: value
    "Field of a description → XML and JSON; None: not set."
    to_sdk: Callable[[Any], Any] = lambda value: value
    "Field of a description → the SDK's attribute."
    from_sdk: Callable[[Any], Any] = lambda value: value
    "The SDK's attribute → field of a description."


def read_flag(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


def read_number(text: str) -> int:
    if not re.fullmatch(r"\s*-?[0-9]{1,18}\s*", text, re.ASCII):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def path_of(address: str | None) -> str | None:
    """Return the path of a destination, which the service shows as a URL and the SDKs send as `sb://host/path`."""
    return _AUTHORITY.sub("", address, count=1) if address else None


def _instance(kind: type, words: str) -> Callable[[Any], Any]:
    """Return a reader of the SDK's attribute that takes this type alone; None is an attribute that is not set."""

    def read(value: Any) -> Any:
        if value is not None and type(value) is not kind:
            raise TypeError(f"must be {words}, not {value!r}")
        return value

    return read


def _milliseconds(value: Any) -> int | None:
    """Read a timedelta or a number of seconds; an unlimited one is None."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"must be a timedelta or a number of seconds, not {value!r}")
    return None if seconds >= UNLIMITED.total_seconds() else round(seconds * 1000)


def _timedelta(duration_ms: int | None) -> timedelta:
    return UNLIMITED if duration_ms is None else timedelta(milliseconds=duration_ms)


def _duration(read: Callable[[str], int | None]) -> SettingType:
    return SettingType("duration", str, read, format_duration, _timedelta, _milliseconds)


DURATION = _duration(parse_duration)
LIMITED_DURATION = _duration(parse_limited_duration)
"A duration that cannot be unlimited."
FLAG = SettingType("flag", bool, read_flag, from_sdk=_instance(bool, "True or False"))
NUMBER = SettingType("number", int, read_number, from_sdk=_instance(int, "a whole number"))
TEXT = SettingType("text", str, str, from_sdk=_instance(str, "a text"))
PATH = SettingType("text", str, str.strip, from_sdk=path_of)
"Path of a queue or topic of the same namespace."
STATUS = SettingType("status", str, str.strip, from_sdk=lambda value: str(getattr(value, "value", value)))
