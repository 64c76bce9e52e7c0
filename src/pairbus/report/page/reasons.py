"""Words the reasons of outages: a table leads from the texts of clients to the words of operators."""

from __future__ import annotations

import re
from collections.abc import Iterable

OTHER = "another error"
WORDS: tuple[tuple[str, str], ...] = (
    (r"operator asked", "forced by an operator"),
    (r"getaddrinfo|name or service not known|name resolution|nodename nor servname", "host name not found"),
    (r"errno 111|errno 61\b|connection refused|connect call failed", "connection refused"),
    (
        r"errno 10[14]|errno 113|reset by peer|broken pipe|connection (was )?(lost|closed|aborted)|unreachable|eof",
        "connection lost",
    ),
    (r"certificate|ssl|tls", "TLS failed"),
    (r"silent|did not answer|no answer", "silent"),
    (r"time-?out|timed out|time is over|not in time|deadline", "time-out"),
    (r"quota|resource-limit|size limit|is full", "quota used up"),
    (r"busy|throttl|\b503\b|50002", "busy"),
    (r"unauthori[sz]ed|\b401\b|token|credential", "not authorised"),
    (r"not-?found|does not exist|\b404\b", "entity not found"),
    (r"disabled|not-allowed", "entity disabled"),
    (r"internal[- ]?(server[- ])?error|\b500\b", "internal error"),
    (r"no connection", "no connection"),
    (r"detach|force", "link detached by the service"),
)
"""(Pattern in the text of a reason, words for it); the first that is found counts."""
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), words) for pattern, words in WORDS]


def in_words(reason: str) -> str:
    """Describe a reason in a few words."""
    return next((words for pattern, words in _PATTERNS if pattern.search(reason)), OTHER)


def said_once(reasons: Iterable[str]) -> str:
    """Describe all reasons of an incident, each once, the most frequent first."""
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[in_words(reason)] = counts.get(in_words(reason), 0) + 1
    return ", ".join(sorted(counts, key=lambda words: -counts[words]))
