"""Application properties as HTTP headers: the type is in the spelling of the value.

    "text"                             a string; `\\"` stands for a quote and `\\\\` for a backslash
    "Wed, 14 Dec 2011 00:00:00 GMT"    a date, in one of the three forms of HTTP
    true, false                        a boolean
    42                                 an integer of 64 bits
    3.14, NaN, Infinity                a double
    anything else                      refused

Laws.
 1. A value that is written and read again is the same text, number, boolean or date (to the second).
 2. Nothing that is written has a control character: a property cannot end a header or begin another one.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any
from uuid import UUID

from pairbus.amqp.types import Described, Float, Timestamp
from pairbus.broker.rest.dates import read_http_date, write_http_date

INTEGER_MIN, INTEGER_MAX = -(1 << 63), (1 << 63) - 1
NAME_LENGTH_MAX = 256
TIMESPAN = "com.microsoft:timespan"
TICKS_PER_S = 10_000_000

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_INTEGER = re.compile(r"[+-]?[0-9]{1,400}")
_DOUBLE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ESCAPED = re.compile(r'\\(["\\]|u00[01][0-9a-f]|u007f)')
_TO_ESCAPE = re.compile(r'["\\\x00-\x1f\x7f]')

# Headers of HTTP itself, of proxies, browsers and tracing: they are no properties, in either direction.
_RESTRICTED = """
    accept accept-charset accept-datetime accept-encoding accept-language accept-ranges age allow alt-svc authorization
    baggage brokerproperties cache-control cdn-loop client-ip connection content-disposition content-encoding
    content-language content-length content-location content-md5 content-range content-type cookie correlation-context
    date dnt etag expect expires forwarded from host http2-settings if-match if-modified-since if-none-match if-range
    if-unmodified-since keep-alive last-modified link location max-forwards origin postman-token pragma
    proxy-authenticate proxy-authorization proxy-connection range referer request-id retry-after server
    servicebusauthorization servicebussupplementaryauthorization set-cookie strict-transport-security te traceparent
    tracestate trailer transfer-encoding upgrade upgrade-insecure-requests user-agent vary via warning
    www-authenticate x-client-ip x-correlation-id x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto
    x-http-method-override x-ms-client-request-id x-ms-date x-ms-retrypolicy x-ms-return-client-request-id
    x-ms-useragent x-ms-version x-original-url x-real-ip x-request-id x-requested-with
"""
RESTRICTED = frozenset(_RESTRICTED.split())
RESTRICTED_BEGINNINGS = ("sec-", "proxy-", "access-control-")


def is_property_name(name: str) -> bool:
    """Return whether a header of this name stands for an application property."""
    if not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        return False
    key = name.lower()
    return key not in RESTRICTED and not key.startswith(RESTRICTED_BEGINNINGS)


def read_value(text: str) -> Any:
    """Return the value that a header stands for; ValueError: it stands for none."""
    text = text.strip(" \t")
    if len(text) >= 2 and text[0] == text[-1] == '"':
        inside = text[1:-1]
        date_ms = read_http_date(inside)
        return Timestamp(date_ms) if date_ms is not None else _ESCAPED.sub(_unescaped, inside)
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        number = int(text)
        return number if INTEGER_MIN <= number <= INTEGER_MAX else _double(text)
    if text in _NOT_FINITE:
        return _NOT_FINITE[text]
    if _DOUBLE.fullmatch(text):
        return _double(text)
    raise ValueError("a text must be in double quotes")


def write_value(value: Any) -> str | None:
    """Return the text of a header for a value; None: HTTP has no form for it, and the property is left out."""
    if isinstance(value, Described):
        value = _seconds_of(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Timestamp | UUID | str):
        return _write_quoted(value)
    if isinstance(value, float):
        return _write_double(value)
    return str(int(value)) if isinstance(value, int) else None


def _write_quoted(value: Timestamp | UUID | str) -> str | None:
    if isinstance(value, Timestamp):
        date = write_http_date(value)
        return None if date is None else f'"{date}"'
    return f'"{_TO_ESCAPE.sub(_escaped, str(value))}"'


def _seconds_of(value: Described) -> float | int | None:
    """Return a time span of .NET in seconds; its addresses and times with a zone have no form."""
    if value.descriptor != TIMESPAN or not isinstance(value.value, int):
        return None
    seconds, ticks = divmod(int(value.value), TICKS_PER_S)
    return int(value.value) / TICKS_PER_S if ticks else seconds


def _double(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("the number is too large")
    return number


def _write_double(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Float):  # the fewest digits that give the same single
        candidates = (float(f"{value:.{digits}g}") for digits in range(6, 10))
        value = next(each for each in candidates if struct.pack("<f", each) == struct.pack("<f", value))
    return repr(float(value))


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return f"\\{character}" if character in '"\\' else f"\\u{ord(character):04x}"


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return code if len(code) == 1 else chr(int(code[1:], 16))
