"""Correlation filters: a message is selected when it has all the values of the filter."""

from __future__ import annotations

from typing import Any

from pairbus.filters.compile import Evaluate, Test, compiled
from pairbus.filters.index import WantedText
from pairbus.filters.kinds import CorrelationFilter, check_value
from pairbus.filters.operators import equal
from pairbus.filters.tree import Property
from pairbus.filters.view import SYSTEM

_FIELDS = {
    "correlation_id": "correlationid",
    "message_id": "messageid",
    "to": "to",
    "reply_to": "replyto",
    "label": "label",
    "session_id": "sessionid",
    "reply_to_session_id": "replytosessionid",
    "content_type": "contenttype",
}


def texts_of(described: CorrelationFilter) -> list[WantedText]:
    """Return the fields that must be these texts; the filter may ask for other values too."""
    texts: list[WantedText] = []
    for name, system in _FIELDS.items():
        value = getattr(described, name)
        if value is not None:
            texts.append(WantedText(f"sys.{system}", SYSTEM[system], value))
    for name, value in sorted(described.properties.items()):
        if type(value) is str:
            texts.append(WantedText(name.lower(), compiled(Property(1, name)), value))
    return texts


def compile_correlation(described: CorrelationFilter) -> Test:
    """Compile a correlation filter. Strings are equal in the same case only; numbers of any type may be equal."""
    wanted: list[tuple[Evaluate, Any]] = []
    for name, system in _FIELDS.items():
        value = getattr(described, name)
        if value is not None:
            wanted.append((SYSTEM[system], value))
    for name, value in described.properties.items():
        wanted.append((compiled(Property(1, name)), check_value(name, value)))
    if len(wanted) == 1:
        (read, only) = wanted[0]
        return lambda view: equal(read(view), only)
    return lambda view: all(equal(read(view), value) for read, value in wanted)
