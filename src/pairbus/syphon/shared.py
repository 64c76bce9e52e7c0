"""Data that the parts of a syphon share: the pumps' common state, and the results of one pass over a queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from pairbus.backlog.envelope import Home, Spoiled
from pairbus.pairing.events import Event
from pairbus.syphon.decide.at_home import AtHome, MaybeAtHome
from pairbus.syphon.decide.pace import Budget
from pairbus.syphon.decide.relay import Destinations, Item, Lanes, SyphonSettings, Tide
from pairbus.syphon.presence import Presence
from pairbus.transport import Carrier, ReceivedMessage

if TYPE_CHECKING:
    from pairbus.syphon.trip import Trip

Opener = Callable[[bytes], Home | Spoiled]
Noting = Callable[[str, list[tuple[Item, ReceivedMessage]]], Awaitable[None]]


class Meter(Protocol):
    """Counter of operations: `count` of them, of `size_bytes` altogether; `outcome` is `ok` or a kind of failure."""

    def __call__(
        self,
        namespace: Literal["primary", "secondary"],
        entity: str,
        kind: str,
        count: int,
        size_bytes: int,
        outcome: str,
        /,
    ) -> None: ...


@dataclass(slots=True)
class SyphonState:
    """State and settings that the pumps of one syphon have in common."""

    primary: Carrier
    secondary: Carrier
    settings: SyphonSettings
    publish: Callable[[Event], None]
    meter: Meter
    clock: Callable[[], float]
    "Seconds that only grow."
    wall_ms: Callable[[], int]
    "Milliseconds since 1970."
    new_opener: Callable[[], Opener]
    "Factory, called for each queue, of the function that turns its messages into those that go home."
    dead_letters: bool
    "False when the source is itself a dead-letter queue: messages that cannot go home stay there."
    destinations: Destinations
    budget: Budget
    tide: Tide
    presence: Presence
    lanes: Lanes = field(default_factory=Lanes)
    at_home: AtHome = field(default_factory=AtHome)
    maybe_at_home: MaybeAtHome = field(default_factory=MaybeAtHome)
    pumps: int = 1
    may_follow: bool = True
    "True when another syphon may have run before and left messages locked: lanes wait until those locks end."
    marks: bool = True
    "True to mark messages for a missing destination with the time since when it is missing."
    trusts: bool = False
    "True when a queue need not prove with its first message that it stores completions."
    before_complete: Noting | None = None
    "Function that gets messages after their destination accepted them, before they are completed. OSError: they stay."
    delivered_at: float = float("-inf")
    "Time at which any destination last accepted a message: a sign that the connection is good."


@dataclass(slots=True)
class Trust:
    """State of a queue: until it has stored a completion, one message at a time goes to each destination."""

    proven: bool


class Held(NamedTuple):
    """Messages that wait under their locks."""

    messages: int
    locks_end: float


@dataclass(slots=True)
class Pass:
    """Results of one pass over a queue so far."""

    skipped: dict[str, str] = field(default_factory=dict)
    "Key of a destination → reason why it is skipped."
    over: str | None = None
    "Reason why the pass sends no more messages; None: it goes on."
    busy: bool = False
    "True when the secondary is throttling."
    drained: bool = False
    "True when no more messages arrived."
    out_of_turn: bool = False
    "True when messages were left to wait for an earlier one, which another queue may have."
    caught_up: bool = False
    "True when only messages arrived that are too late for a single drain."
    delivered: int = 0
    dead_lettered: int = 0
    uncompleted: int = 0
    "Messages at home that the secondary failed to complete."
    uncompleted_because: str = ""
    held: list[Held] = field(default_factory=list)
    began: float = 0.0
    "Time of the first messages, or of the last return of early ones."
    held_on_link: int = 0
    "Number of held or early messages that are unsettled on the present link."
    early: list[tuple[Trip, list[Item]]] = field(default_factory=list)
    "Messages of lanes that may have earlier, hidden messages."
    errors: int = 0

    @property
    def progressed(self) -> bool:
        """True when a message left the queue, and every completion was stored."""
        return self.delivered + self.dead_lettered > 0 and not self.uncompleted

    def hold_early(self) -> None:
        """Leave early messages locked: later messages of their lanes wait for them."""
        early, self.early = self.early, []
        for trip, items in early:
            trip.hold(items)


def count_of(held: list[Held]) -> int:
    return sum(each.messages for each in held)
