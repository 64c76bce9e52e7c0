"""The parts of a syphon share this data: the state of all pumps, the results of one pass, the messages of one batch."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from pairbus.pairing.events import Event
from pairbus.syphon.decide.at_home import AtHome, MaybeAtHome
from pairbus.syphon.decide.batch import Item, Opened, Opener
from pairbus.syphon.decide.destinations import Destinations
from pairbus.syphon.decide.pace import Budget
from pairbus.syphon.decide.settings import SyphonSettings
from pairbus.syphon.presence import Presence
from pairbus.transport import Carrier, ReceivedMessage

if TYPE_CHECKING:
    from pairbus.syphon.metered_link import MeteredLink
    from pairbus.syphon.receive import Intake
    from pairbus.syphon.send import Sending

BeforeComplete = Callable[[str, list[tuple[Item, ReceivedMessage]]], Awaitable[None]]


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


class LaneKeeper(Protocol):
    """Handles messages of senders that keep order, for all queues of a syphon: `LaneOrder` moves them in order, a task
    on Spark leaves them."""

    def saw(self, queue: str, opened: Opened, batch: Batch) -> list[Item]:
        """Note a batch; return its messages of lanes that may go, after earlier ones of other queues."""

    async def send_in_order(
        self, queue: str, sending: Sending, batch: Batch, items: list[Item], is_over: Callable[[], bool]
    ) -> bool:
        """Send messages of lanes home; False when some are left to wait for another queue."""

    def hold(self, batch: Batch, items: list[Item]) -> None:
        """Note messages of lanes that wait under their locks."""

    def read_to_end(self, queue: str) -> None:
        """Note that a pass has emptied the queue."""

    def is_awaited(self, queue: str) -> bool:
        """Tell whether lanes of other queues have waited for a look at this queue since the last call."""


@dataclass(slots=True)
class SyphonState:
    """The pumps of one syphon have this state and these settings in common."""

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
    presence: Presence
    intakes: dict[str, Intake] = field(default_factory=dict)
    "Queue → the links of its pump."
    order: LaneKeeper | None = None
    "None until a message of a sender that keeps order arrives."
    at_home: AtHome = field(default_factory=AtHome)
    maybe_at_home: MaybeAtHome = field(default_factory=MaybeAtHome)
    pumps: int = 1
    may_follow: bool = True
    "True when another syphon may have run before and left messages locked: lanes wait until those locks end."
    marks: bool = True
    "True to mark messages for a missing destination with the time since when it is missing."
    trusts: bool = False
    "True when a queue need not prove with its first message that it stores completions."
    before_complete: BeforeComplete | None = None
    "Function that gets messages after their destination accepted them, before they are completed. OSError: they stay."
    delivered_at: float = float("-inf")
    "Time at which any destination last accepted a message: a sign that the connection is good."


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
    too_early: bool = False
    "True when messages of lanes arrived before which others may be hidden. The pass ends with all messages released."
    caught_up: bool = False
    "True when only messages arrived that are too late for a single drain."
    delivered: int = 0
    dead_lettered: int = 0
    uncompleted: int = 0
    "Messages at home that the secondary failed to complete."
    uncompleted_because: str = ""
    held: list[Held] = field(default_factory=list)
    held_on_link: int = 0
    "Number of messages that are left locked on the present link."
    errors: int = 0

    @property
    def progressed(self) -> bool:
        """True when a message left the queue, and every completion was stored."""
        return self.delivered + self.dead_lettered > 0 and not self.uncompleted


@dataclass(slots=True)
class Batch:
    """Received messages that are moved together. A place is a delivery id, which is valid on this link only."""

    link: MeteredLink
    results: Pass
    received: dict[int, ReceivedMessage]
    "Place → message."
    locks_end: float
    "Time, by the shared clock, until which the messages are certainly still locked."
    waiting: set[int] = field(default_factory=set)
    "Places of messages that stay in the queue."

    def join(self, other: Batch) -> bool:
        """Add the messages of another batch; False, without adding any, when it has another link or pass."""
        if other.link is not self.link or other.results is not self.results:
            return False
        self.received |= other.received
        self.locks_end = min(self.locks_end, other.locks_end)
        return True

    def at(self, items: Iterable[Item]) -> list[ReceivedMessage]:
        """Return the messages as they were received."""
        received = self.received
        return [received[item.place] for item in items]

    def too_late(self, now: float) -> str | None:
        """Return the reason why no more messages of this batch may be sent; None when they may."""
        if self.link.over is not None:
            return "the link was lost before its messages were sent, and they will come again"
        if now >= self.locks_end:
            return "the locks of messages ran out before they were sent"
        return None


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def count_of(held: list[Held]) -> int:
    return sum(each.messages for each in held)
