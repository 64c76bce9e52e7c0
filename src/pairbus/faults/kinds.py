"""The table of faults: which directions each kind has, where it acts, and the numbers that it takes.

The broker and the proxy read this table, and so do the command line, the JSON of the control routes and the tests: a
fault that is not a row here does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

SEND, RECEIVE, MANAGE, CONTACT = "send", "receive", "manage", "contact"
DIRECTIONS = (SEND, RECEIVE, MANAGE, CONTACT)
"The four ways in which an entity can be unavailable; `contact` means the connection itself."


class Place(Enum):
    """A place where the broker or the proxy asks whether a fault meets the event there."""

    CONNECT = "a client connects"
    RESOLVE = "a client looks a name up"
    HANDSHAKE = "a client begins TLS"
    WIRE = "bytes pass on a connection"
    ATTACH = "a link is attached"
    MESSAGE = "a client sends a message"
    HAND_OUT = "a message is about to be handed to a receiver"
    SETTLEMENT = "a receiver settles a message"
    REQUEST = "a request arrives over AMQP"
    HTTP = "a request arrives over HTTP"
    VISIBILITY = "a message is about to become receivable"
    COMMIT = "a group of changes is written to the disk"
    STORE = "a group that needs room on the disk is written"
    IDLE = "a link or a connection has nothing to do"


@dataclass(frozen=True, slots=True)
class Argument:
    """A number that a kind takes."""

    name: str
    "Name of the argument, with the unit last: `_s` is seconds, and a text such as `5m` is accepted too."
    default: float
    meaning: str


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One row of the table."""

    name: str
    directions: tuple[str, ...]
    "Directions that the kind has; empty: it acts below all of them."
    places: frozenset[Place]
    meets: str
    "Sentence that says how a client experiences the fault."
    arguments: tuple[Argument, ...] = ()
    takes_entity: bool = True
    takes_chance: bool = True
    "True when a probability and a count make sense."
    holds: bool = False
    "True when the fault holds the events that it met until it ends. When its count is used up, it only takes no more."
    for_s: float | None = None
    "Time that the fault lasts unless given; None: until it is cleared."
    at: frozenset[str] = field(default_factory=lambda: frozenset({"broker"}))
    "Parts that can play the kind: `broker`, `proxy`."


_BOTH = frozenset({"broker", "proxy"})
_PROXY = frozenset({"proxy"})
_OPERATIONS = frozenset({Place.MESSAGE, Place.HAND_OUT, Place.SETTLEMENT, Place.REQUEST, Place.HTTP})
_ERRORS = _OPERATIONS | {Place.ATTACH}
_STORING = frozenset({Place.MESSAGE, Place.SETTLEMENT, Place.REQUEST, Place.HTTP})

KINDS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind(
            "refuse",
            (CONTACT,),
            frozenset({Place.CONNECT}),
            "Connections are refused, and those that are open are cut.",
            takes_entity=False,
            at=_BOTH,
        ),
        FaultKind(
            "black-hole",
            (CONTACT,),
            frozenset({Place.CONNECT}),
            "Connections are accepted and nothing answers; those that are open freeze, and are not closed.",
            takes_entity=False,
            holds=True,
            at=_BOTH,
        ),
        FaultKind(
            "latency",
            (CONTACT,),
            frozenset({Place.WIRE}),
            "Everything that the namespace says comes later.",
            (
                Argument("delay_s", 0.1, "how much later"),
                Argument("jitter_s", 0.0, "up to so much more, drawn anew each time"),
            ),
            takes_entity=False,
            takes_chance=False,
            at=_BOTH,
        ),
        FaultKind(
            "bandwidth",
            (CONTACT,),
            frozenset({Place.WIRE}),
            "Each connection passes few bytes a second, in each direction.",
            (Argument("bytes_per_s", 10_000, "bytes a second"),),
            takes_entity=False,
            takes_chance=False,
            at=_BOTH,
        ),
        FaultKind(
            "stall",
            (SEND, RECEIVE, MANAGE),
            _OPERATIONS,
            "Links open, but sends, settlements and requests get no answer, and no message is handed out.",
            holds=True,
            at=_BOTH,
        ),
        FaultKind(
            "drop-answer",
            (SEND, RECEIVE, MANAGE),
            _STORING,
            "The change is stored, its answer never leaves, and the connection is cut.",
            at=_BOTH,
        ),
        FaultKind("throttle", (SEND, RECEIVE, MANAGE), _ERRORS, "Operations are refused as server-busy.", at=_BOTH),
        FaultKind(
            "restart",
            (SEND, RECEIVE, MANAGE),
            frozenset({Place.ATTACH, Place.REQUEST}),
            "The links of the entity are detached by force, and refused while the fault lasts.",
            takes_chance=False,
            for_s=10.0,
            at=_BOTH,
        ),
        FaultKind(
            "disable",
            (SEND, RECEIVE),
            _ERRORS - {Place.HTTP},
            "Operations are refused as on a disabled entity.",
            at=_BOTH,
        ),
        FaultKind(
            "quota",
            (SEND, MANAGE),
            frozenset({Place.MESSAGE, Place.REQUEST, Place.HTTP}),
            "Sends are refused as on an entity that is full.",
            at=_BOTH,
        ),
        FaultKind(
            "unauthorized",
            (SEND, RECEIVE, MANAGE),
            _ERRORS,
            "Operations are refused as without the right to them.",
            at=_BOTH,
        ),
        FaultKind(
            "internal-error", (SEND, RECEIVE, MANAGE), _ERRORS, "Operations fail with an internal error.", at=_BOTH
        ),
        FaultKind(
            "time-out", (SEND, RECEIVE, MANAGE), _ERRORS, "Operations fail with the service's own time-out.", at=_BOTH
        ),
        FaultKind(
            "delay",
            (SEND,),
            frozenset({Place.VISIBILITY}),
            "Sends succeed, and messages become receivable later.",
            (
                Argument("delay_s", 900.0, "how much later"),
                Argument("jitter_s", 0.0, "up to so much more, drawn anew for each message"),
            ),
        ),
        FaultKind(
            "disk-full",
            (),
            frozenset({Place.STORE}),
            "Nothing new can be stored; settlements and deletions go on.",
            takes_entity=False,
        ),
        FaultKind(
            "slow-disk",
            (),
            frozenset({Place.COMMIT}),
            "Each write to the disk takes long.",
            (Argument("delay_s", 1.0, "how much longer each write takes"),),
            takes_entity=False,
        ),
        FaultKind(
            "idle-close",
            (CONTACT,),
            frozenset({Place.IDLE}),
            "Senders without work are detached, and connections without links are closed.",
            (
                Argument("link_s", 600.0, "how long a sender may be idle"),
                Argument("connection_s", 300.0, "how long a connection may be without links"),
            ),
            takes_entity=False,
            takes_chance=False,
            at=_BOTH,
        ),
        FaultKind(
            "dns",
            (CONTACT,),
            frozenset({Place.RESOLVE}),
            "The name of the namespace does not resolve; connections that are open go on.",
            takes_entity=False,
            at=_PROXY,
        ),
        FaultKind(
            "certificate",
            (CONTACT,),
            frozenset({Place.HANDSHAKE}),
            "New connections meet a certificate that has expired; those that are open go on.",
            takes_entity=False,
            at=_PROXY,
        ),
    )
}
