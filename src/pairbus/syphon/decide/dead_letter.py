"""Decides which messages are dead-lettered in their backlog queue. All other messages that cannot go home now stay.

| reason | when | decided by |
| --- | --- | --- |
| `UndecodableMessage` | the message cannot be decoded | `unwrap` of backlog/envelope.py |
| `NoDestination`, `InvalidAlias` | its aliases are missing or wrong | `unwrap` of backlog/envelope.py |
| `TTLExpiredException` | its life is over, with `ttl_policy="deduct"` | `home_payload` of backlog/envelope.py |
| `RefusedByDestination` | its destination will never accept it | the table `FATES`, below |
| `DestinationMissing` | its destination is missing for longer than its grace | `ruling_on`, below |

The first three rows are found when a batch is opened (`syphon/decide/batch.py`), the others when a send fails
(`syphon/failed_sends.py`). `syphon/settle.py` dead-letters the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from pairbus.pairing.policy import Failure, Kind

REFUSED, MISSING = "RefusedByDestination", "DestinationMissing"
TEXT_MAX = 1024  # of a description; the service takes 4096 characters


class Fate(Enum):
    SKIP = "skip"
    "Skip the destination for the rest of the pass."
    DEAD_LETTER = "dead-letter"
    "Dead-letter the message; of several that failed together, find the wrong ones first."


FATES: Mapping[Kind, Fate] = MappingProxyType(
    {
        Kind.COMMUNICATION: Fate.SKIP,
        Kind.TIMEOUT: Fate.SKIP,
        Kind.INTERNAL: Fate.SKIP,
        Kind.FULL: Fate.SKIP,
        Kind.BUSY: Fate.SKIP,  # and for ten seconds, in every pass
        Kind.DISABLED: Fate.SKIP,
        Kind.UNAUTHORIZED: Fate.SKIP,  # it may pass: a key was rotated
        Kind.NOT_FOUND: Fate.SKIP,  # until the grace is over: it may be redeployed
        Kind.TOO_LARGE: Fate.DEAD_LETTER,
        Kind.INVALID: Fate.DEAD_LETTER,
    }
)


class Ruling(NamedTuple):
    """The decision about the messages of a failed attempt."""

    fate: Fate
    reason: str
    "Reason of a skip, or of the dead letter."
    description: str = ""


def ruling_on(path: str, failure: Failure, missing_s: float | None, grace_s: float) -> Ruling:
    """Decide about the messages of a failed send. `missing_s`: how long their destination is known to be missing; None:
    it exists."""
    if missing_s is not None:
        if missing_s < grace_s:
            return Ruling(Fate.SKIP, failure.text)
        return Ruling(Fate.DEAD_LETTER, MISSING, _missing_text(path, missing_s, failure))
    if FATES[failure.kind] is Fate.DEAD_LETTER:
        return Ruling(Fate.DEAD_LETTER, REFUSED, _refused_text(path, failure))
    return Ruling(Fate.SKIP, failure.text)


def _missing_text(path: str, missing_s: float, failure: Failure) -> str:
    cause = failure.text[:300].rstrip(".")
    return (
        f"'{path}' has been missing for {missing_s:.0f} s: {cause}. Create it and re-drive this dead-letter queue, or"
        " discard the message."
    )[:TEXT_MAX]


def _refused_text(path: str, failure: Failure) -> str:
    return (
        f"'{path}' refuses this message, whenever it is sent: {failure.text:.500}. Change the destination's limits and"
        " re-drive this dead-letter queue, or send a changed message by hand."
    )[:TEXT_MAX]
