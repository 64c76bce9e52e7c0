"""Data that the parts of a syphon share: the pumps' common state, and what one pass over a queue has come to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from pairbus.pairing.at_home import AtHome
from pairbus.pairing.envelope import Home, Spoiled
from pairbus.pairing.events import Event
from pairbus.pairing.pace import Budget
from pairbus.pairing.relay import Destinations, Item, Lanes, SyphonSettings, Tide
from pairbus.syphon.presence import Presence
from pairbus.transport import Carrier, Received

if TYPE_CHECKING:
    from pairbus.syphon.trip import Trip

Opener = Callable[[bytes], Home | Spoiled]
Noting = Callable[[str, list[tuple[Item, Received]]], Awaitable[None]]


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
class Shared:
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
    "Makes, for each queue, the function that turns its messages into those that go home."
    dead_letters: bool
    "False where the source is itself a dead-letter queue: messages that cannot go home stay there."
    destinations: Destinations
    budget: Budget
    tide: Tide
    presence: Presence
    lanes: Lanes = field(default_factory=Lanes)
    at_home: AtHome = field(default_factory=AtHome)
    pumps: int = 1
    may_follow: bool = True
    "Another syphon may have run before and left messages locked: lanes wait until those locks are over."
    marks: bool = True
    "Messages for a missing destination are marked with the time since when it is missing."
    trusts: bool = False
    "A queue need not prove with its first message that it stores completions."
    before_complete: Noting | None = None
    "Called with messages after their destination has accepted them, before they leave the queue. OSError: they stay."
    delivered_at: float = float("-inf")
    "When any destination last accepted something: a sign that the connection is good."


@dataclass(slots=True)
class Trust:
    """Whether a queue is known to store completions. Until it is, one message at a time goes to each destination."""

    proven: bool


class Held(NamedTuple):
    """Messages that wait under their locks."""

    messages: int
    locks_end: float


@dataclass(slots=True)
class Pass:
    """Results of one pass over a queue so far."""

    skipped: dict[str, str] = field(default_factory=dict)
    "Key of a destination → why it is left alone."
    over: str | None = None
    "Why nothing more is sent."
    busy: bool = False
    "The secondary asked to be left alone."
    drained: bool = False
    "Nothing more came."
    caught_up: bool = False
    "Nothing more came except messages that are too late for a single drain."
    delivered: int = 0
    dead_lettered: int = 0
    uncompleted: int = 0
    "Messages at home that the secondary failed to complete."
    uncompleted_because: str = ""
    held: list[Held] = field(default_factory=list)
    began: float = 0.0
    "When the messages that it moves began to come."
    held_on_link: int = 0
    "How many held or early messages are unsettled on the present link."
    early: list[tuple[Trip, list[Item]]] = field(default_factory=list)
    "Messages of lanes of which earlier ones may be hidden."
    errors: int = 0

    @property
    def progressed(self) -> bool:
        """True when something left the queue for good, and every completion was stored."""
        return self.delivered + self.dead_lettered > 0 and not self.uncompleted

    def hold_early(self) -> None:
        """Leave early messages locked: later messages of their lanes wait for them."""
        early, self.early = self.early, []
        for trip, items in early:
            trip.hold(items)


def count_of(held: list[Held]) -> int:
    return sum(each.messages for each in held)
