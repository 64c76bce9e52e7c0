"""One batch on its way home: sent to its destinations, completed when they have accepted, dead-lettered when they never
will, and otherwise left under its locks.

Laws of this file.
 1. A message is completed only after its destination has accepted it. If that fails it is received again: a duplicate
    may be stored, a message is never lost.
 2. Nothing is abandoned. What waits stays locked, and comes back when its lock runs out, or a single drain is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from pairbus.amqp.message import BATCH_FORMAT, encode_batch
from pairbus.errors import ConfigError
from pairbus.ledger.rows import alike
from pairbus.pairing.envelope import Home, Spoiled, batch_head, home_payload
from pairbus.pairing.events import DeadLettered, DestinationSkipped, Event, MaybeDuplicated, Moved, Stayed
from pairbus.pairing.pace import Budget
from pairbus.pairing.policy import MESSAGE_FAULTS, Kind
from pairbus.pairing.relay import (
    Chunk,
    Destinations,
    Fate,
    Item,
    Lanes,
    Ruling,
    SyphonSettings,
    Tide,
    by_destination,
    key_of,
    rounds,
)
from pairbus.transport import Carrier, Received, Receiver, Refused, Sender, TransportError
from pairbus.transport.errors import Timeout
from pairbus.wire_failures import failure_of

logger = logging.getLogger("pairbus.syphon")

AT_ONCE = 16  # destinations of one batch
TURNS_MAX = 1000  # destinations whose last batch is remembered
SETTLE_TIMEOUT_S = 10.0


Opener = Callable[[bytes], Home | Spoiled]
Noting = Callable[[str, list[tuple[Item, Received]]], Awaitable[None]]


class Meter(Protocol):
    """Counts operations: `count` of them, of `size_bytes` altogether; `outcome` is `ok` or a kind of failure."""

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
    """What the pumps of one syphon have in common."""

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
    "For each queue: what makes its messages into those that go home."
    buries: bool
    "False where the source is itself a dead-letter queue: what cannot go home stays there."
    destinations: Destinations
    budget: Budget
    tide: Tide
    lanes: Lanes = field(default_factory=Lanes)
    pumps: int = 1
    may_follow: bool = True
    "Another syphon may have been there before, and have left messages locked: lanes wait until those locks are over."
    before_complete: Noting | None = None
    "Hears of messages after their destination has accepted them, before they leave the queue. OSError: they stay."
    delivered_at: float = float("-inf")
    "When any destination last accepted something: a sign that the connection is good."


class Held(NamedTuple):
    """Messages that wait under their locks."""

    receiver: Receiver
    places: list[int]
    locks_end: float


@dataclass(slots=True)
class Pass:
    """What one pass over a queue has come to so far."""

    skipped: dict[str, str] = field(default_factory=dict)
    "Key of a destination → why it is left alone."
    over: str | None = None
    "Why nothing more is sent."
    busy: bool = False
    "The secondary asked to be left alone."
    drained: bool = False
    "Nothing more came."
    caught_up: bool = False
    "Nothing more came but what is too late for a single drain."
    delivered: int = 0
    buried: int = 0
    held: list[Held] = field(default_factory=list)
    began: float = 0.0
    "When what it moves began to come."
    held_on_link: int = 0
    "Of those and the early ones, how many are unsettled on the present link."
    early: list[tuple[Trip, list[Item]]] = field(default_factory=list)
    "Messages of lanes of which earlier ones may be hidden."
    errors: int = 0

    def hold_early(self) -> None:
        """They stay locked, and what comes later waits for them."""
        early, self.early = self.early, []
        for trip, items in early:
            trip.hold(items)


class Turn:
    """The place of a batch at one destination: what came first to the queue is sent first, pipelined or not."""

    __slots__ = ("_before", "_sent")

    def __init__(self, before: Turn | None) -> None:
        self._before = before
        self._sent = asyncio.get_running_loop().create_future()

    async def come(self) -> None:
        if self._before is not None:
            await asyncio.wait([self._before._sent])
            self._before = None

    @property
    def is_over(self) -> bool:
        return self._sent.done()

    def over(self) -> None:
        """Everything that could be sent at once is sent."""
        if not self._sent.done():
            self._sent.set_result(None)


class Opened(NamedTuple):
    """A batch that was read."""

    items: list[Item]
    "Without order."
    lanes: list[Item]
    "Of senders that keep order."
    spoiled: list[tuple[int, Spoiled]]
    locked_until_ms: int | None


class Mover:
    """Brings the batches of one queue home."""

    def __init__(self, shared: Shared, queue: str) -> None:
        self._shared = shared
        self._queue = queue
        self._opener = shared.new_opener()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._turns: dict[str, Turn] = {}
        "Key of a destination → the last batch for it."

    def open(self, received: list[Received]) -> Opened:
        shared = self._shared
        opener, policy, now_ms = self._opener, shared.settings.ttl_policy, shared.wall_ms()
        items: list[Item] = []
        lanes: list[Item] = []
        spoiled, locked_until_ms = [], None
        for message in received:
            home = opener(message.payload)
            payload = home if isinstance(home, Spoiled) else home_payload(home, policy, now_ms)
            if isinstance(home, Spoiled) or isinstance(payload, Spoiled):
                assert isinstance(payload, Spoiled)
                spoiled.append((message.delivery_id, payload))
                continue
            (items if home.sender is None else lanes).append(Item(message.delivery_id, home, payload))
            locked_until_ms = home.locked_until_ms or locked_until_ms
        return Opened(items, lanes, spoiled, locked_until_ms)

    def in_turns(self, items: list[Item]) -> list[tuple[list[Item], Turn]]:
        """By destination; whoever asks first is first there."""
        return [(group, self._turn(key)) for key, group in by_destination(items).items()]

    def _turn(self, key: str) -> Turn:
        if len(self._turns) >= TURNS_MAX and key not in self._turns:
            self._turns = {key: turn for key, turn in self._turns.items() if not turn.is_over}
        turn = self._turns[key] = Turn(self._turns.get(key))
        return turn

    async def move(self, trip: Trip, turns: list[tuple[list[Item], Turn]]) -> None:
        try:
            if len(turns) == 1:
                await self._bring(trip, *turns[0])
            else:
                async with asyncio.TaskGroup() as tasks:
                    for group, turn in turns:
                        tasks.create_task(self._bring(trip, group, turn))
        finally:
            for _, turn in turns:
                turn.over()

    async def _bring(self, trip: Trip, group: list[Item], turn: Turn) -> None:
        await turn.come()
        async with self._at_once:
            await trip.bring(group, turn)


class Trip:
    """Messages on their way, with the link on which they are settled; their places are their delivery ids.

    `locks_end`: until when, by the shared clock, they are surely still locked.
    """

    def __init__(
        self,
        shared: Shared,
        queue: str,
        received: list[Received],
        receiver: Receiver,
        this: Pass,
        locks_end: float,
    ) -> None:
        self._shared = shared
        self._queue = queue
        self._received = {message.delivery_id: message for message in received}
        self._receiver = receiver
        self._pass = this
        self._locks_end = locks_end

    def joined_by(self, other: Trip) -> bool:
        """Take the messages of another trip along; not when those are settled on another link."""
        if other._receiver is not self._receiver or other._pass is not self._pass:
            return False
        self._received |= other._received
        self._locks_end = min(self._locks_end, other._locks_end)
        return True

    def received_on(self, receiver: Receiver, items: list[Item]) -> list[Received]:
        """The messages as they came; none when they came on another link."""
        return self._at(item.place for item in items) if receiver is self._receiver else []

    async def bring(self, items: list[Item], turn: Turn) -> None:
        """All messages of the batch that have this one destination."""
        shared, path = self._shared, items[0].home.path
        now = shared.clock()
        if self._pass.over is not None:
            self.hold(items)
            return
        reason = self._pass.skipped.get(key_of(path)) or shared.destinations.closed_because(path, now)
        if reason is not None:
            self._skip(path, reason, items)
            return
        ready = shared.lanes.ready(items, now)
        if len(ready) < len(items):
            going = {item.place for item in ready}
            self.hold([item for item in items if item.place not in going])
        if not ready:
            return
        wait_s = shared.budget.take(len(ready), now)
        if wait_s:
            await asyncio.sleep(wait_s)
        if (late := self._too_late) is not None:
            self.stop(late)
            self.hold(ready)
            return
        try:
            sender = await shared.primary.sender(path, shared.settings.send_timeout_s)
        except TransportError as error:
            await self._failed(path, ready, error, now, at_attach=True)
            return
        except ConfigError as error:  # the connection string is for another entity
            self._pass.errors += 1
            self._skip(path, str(error), ready)
            return
        await self._send(sender, path, ready, turn, in_batches=shared.destinations.takes_batches(path))

    async def bury_spoiled(self, spoiled: list[tuple[int, Spoiled]]) -> None:
        groups: dict[tuple[str, str], list[tuple[int, Spoiled]]] = {}
        for place, one in spoiled:
            if one.home is not None:
                self._shared.lanes.gone(one.home)  # nothing of its lane need wait for it
            groups.setdefault((one.reason, one.description), []).append((place, one))
        for why, group in groups.items():
            await self._bury([place for place, _ in group], [one.message_id for _, one in group], *why)

    # ── sending ──

    async def _send(self, sender: Sender, path: str, items: list[Item], turn: Turn, *, in_batches: bool) -> bool:
        """True when every message was accepted."""
        all_accepted = True
        left = rounds(items, sender.max_message_size, in_batches=in_batches)
        while left:
            chunks, began = left.pop(0), self._shared.clock()
            errors, unsent = await self._send_at_once(sender, chunks, turn if not left else None)
            sent = list(zip(chunks, errors, strict=False))
            accepted = [item for chunk, error in sent if error is None for item in chunk]
            if accepted:
                await self._accepted(path, accepted)
            for chunk, error in sent:
                if error is not None:
                    all_accepted = await self._chunk_failed(sender, path, chunk, error, began, turn) and all_accepted
            if unsent is not None:
                await self._not_sent(
                    sender, path, [item for chunk in chunks[len(sent) :] for item in chunk], unsent, began
                )
                all_accepted = False
            if key_of(path) in self._pass.skipped or self._pass.over is not None:
                self.hold([item for later in left for chunk in later for item in chunk])
                return False
        return all_accepted

    async def _send_at_once(
        self, sender: Sender, chunks: list[Chunk], turn: Turn | None
    ) -> tuple[list[TransportError | None], TransportError | str | None]:
        """What became of the chunks, as far as they were sent, and why the others were not. All of them together wait
        for credit no longer than one send may take."""
        timeout_s, clock = self._shared.settings.send_timeout_s, self._shared.clock
        ready_by = min(clock() + timeout_s, self._locks_end)
        answers: list[asyncio.Future[None] | TransportError] = []
        unsent: TransportError | str | None = None
        for chunk in chunks:
            try:
                if not sender.sendable:
                    await sender.ready(max(ready_by - clock(), 0.0))
            except TransportError as error:
                unsent = error
                break
            if (unsent := self._too_late) is not None:
                break
            try:
                answers.append(_send_chunk(sender, chunk, timeout_s))
            except TransportError as error:
                answers.append(error)
        if turn is not None:
            turn.over()
        errors: list[TransportError | None] = []
        for chunk, answer in zip(chunks, answers, strict=False):
            if isinstance(answer, TransportError):  # too large for the link: nothing was sent, nothing is billed
                errors.append(answer)
                continue
            try:
                await answer
                errors.append(None)
            except TransportError as error:
                self._meter_send(chunk[0].home.path, chunk, failure_of(error).kind.value)
                errors.append(error)
        return errors, unsent

    async def _not_sent(
        self, sender: Sender, path: str, items: list[Item], error: TransportError | str, began: float
    ) -> None:
        if isinstance(error, str):
            self.stop(error)
            self.hold(items)
            return
        await self._failed(path, items, error, began)
        if isinstance(error, Timeout) and not sender.in_flight:
            self._shared.primary.forget(path)  # whether the peer is there at all, the next attach tells

    async def _chunk_failed(
        self, sender: Sender, path: str, chunk: Chunk, error: TransportError, began: float, turn: Turn
    ) -> bool:
        failure = failure_of(error)
        if len(chunk) == 1 or failure.kind not in MESSAGE_FAULTS:
            await self._failed(path, chunk, error, began)
            return False
        all_accepted = await self._send(sender, path, chunk, turn, in_batches=False)
        if all_accepted and failure.kind is not Kind.TOO_LARGE:  # which says nothing about smaller ones
            self._shared.destinations.refuses_batches(path)
        return False

    async def _accepted(self, path: str, items: list[Item]) -> None:
        shared, now_ms = self._shared, self._shared.wall_ms()
        shared.delivered_at = shared.clock()
        shared.destinations.delivered(path)
        self._pass.delivered += len(items)
        self._meter_send(path, items, "ok")
        window_ms = shared.settings.duplicate_detection_window_s * 1000
        for _, home, _ in items:
            if home.counter is not None:
                shared.lanes.gone(home)
            if home.first_attempt_ms is not None and now_ms - home.first_attempt_ms > window_ms:
                away_s = (now_ms - home.first_attempt_ms) / 1000
                shared.publish(MaybeDuplicated.late(path, home.message_id or "", away_s))
        completed = await self._complete(items) if await self._noted(path, items) else []
        if completed:
            ids = tuple([home.message_id or "" for _, home, _ in completed])
            shared.publish(Moved(path, self._queue, len(ids), ids))

    def _meter_send(self, path: str, items: list[Item], outcome: str) -> None:
        for count, size_bytes in alike([len(item.payload) for item in items]):
            self._shared.meter("primary", path, "send", count, size_bytes, outcome)

    def _meter_settled(self, count: int, outcome: str) -> None:
        if count:
            self._shared.meter("secondary", self._queue, "complete", count, 0, outcome)

    # ── settling ──

    async def _noted(self, path: str, items: list[Item]) -> bool:
        if self._shared.before_complete is None:
            return True
        try:
            await self._shared.before_complete(path, [(item, self._received[item.place]) for item in items])
        except OSError as error:
            self.stop(f"messages that are at home could not be noted, and will come again: {error}")
            return False
        return True

    async def _complete(self, items: list[Item]) -> list[Item]:
        """Those that are gone from the queue. The others are at home all the same, and will be received again."""
        try:
            await self._receiver.complete(self._at(item.place for item in items), timeout_s=SETTLE_TIMEOUT_S)
        except TransportError as error:
            kept = set(error.delivery_ids) if isinstance(error, Refused) and error.delivery_ids else None
            self.stop(f"messages that are at home could not be completed, and may come again: {error}", error)
            gone = [item for item in items if kept is not None and self._received[item.place].delivery_id not in kept]
            self._meter_settled(len(items) - len(gone), failure_of(error).kind.value)
            self._meter_settled(len(gone), "ok")
            return gone
        self._meter_settled(len(items), "ok")
        return items

    async def _bury(self, places: list[int], ids: Iterable[str | None], reason: str, description: str) -> None:
        shared = self._shared
        if not shared.buries:
            self._pass.errors += len(places)
            self.keep(places)
            named = tuple([message_id or "" for message_id in ids])
            shared.publish(Stayed(self._queue, len(places), named, reason, description))
            return
        try:
            await self._receiver.dead_letter(self._at(places), reason, description, timeout_s=SETTLE_TIMEOUT_S)
        except TransportError as error:
            self.stop(f"a message could not be dead-lettered, and will come again: {error}", error)
            self._meter_settled(len(places), failure_of(error).kind.value)
            return
        self._meter_settled(len(places), "ok")
        self._pass.buried += len(places)
        for message_id in ids:
            shared.publish(DeadLettered(self._queue, message_id or "", reason, description))

    def _at(self, places: Iterable[int]) -> list[Received]:
        return [self._received[place] for place in places]

    # ── failures ──

    async def _failed(
        self, path: str, items: list[Item], error: TransportError, began: float, *, at_attach: bool = False
    ) -> None:
        shared, failure = self._shared, failure_of(error)
        ruling: Ruling = shared.destinations.failed(path, failure, shared.clock(), at_attach=at_attach)
        if ruling.fate is Fate.BURY:
            for item in items:
                shared.lanes.gone(item.home)
            places, ids = [item.place for item in items], [item.home.message_id for item in items]
            await self._bury(places, ids, ruling.reason, ruling.description)
            return
        self._pass.errors += 1
        if failure.kind is Kind.BUSY:
            shared.budget.busy(shared.clock(), began)
        unheard = failure.kind is Kind.TIMEOUT and (
            at_attach or failure.outcome_unknown
        )  # not: no credit, nothing asked
        if failure.kind is Kind.COMMUNICATION or unheard:
            shared.primary.forget(path)
            if unheard and shared.delivered_at < began:
                await shared.primary.drop()  # a silent peer: nothing else was accepted since this was sent either
            if not shared.primary.is_connected:
                self.stop(f"the primary cannot be reached: {ruling.reason}")
        self._skip(path, ruling.reason, items)

    def _skip(self, path: str, reason: str, items: list[Item]) -> None:
        if key_of(path) not in self._pass.skipped:
            self._pass.skipped[key_of(path)] = reason
            self._shared.publish(DestinationSkipped(path, self._queue, reason))
        self.hold(items)

    def hold(self, items: list[Item]) -> None:
        self.keep([item.place for item in items])
        now = self._shared.clock()
        for item in items:
            self._shared.lanes.waits(item.home, self._locks_end, now)

    def keep(self, places: list[int]) -> None:
        self._pass.held.append(Held(self._receiver, places, self._locks_end))
        self._pass.held_on_link += len(places)

    @property
    def _too_late(self) -> str | None:
        """Why nothing more of this trip may be sent."""
        if self._receiver.over is not None:
            return "the link was lost before its messages were sent, and they will come again"
        if self._shared.clock() >= self._locks_end:
            return "the locks of messages ran out before they were sent"
        return None

    def stop(self, reason: str, error: TransportError | None = None) -> None:
        """`error`: of the secondary."""
        if error is not None and failure_of(error).kind is Kind.BUSY:
            self._pass.busy = True
        if self._pass.over is None:
            self._pass.over = reason
            self._pass.errors += 1
            logger.warning("%s: %s", self._queue, reason)


def _send_chunk(sender: Sender, chunk: Chunk, timeout_s: float) -> asyncio.Future[None]:
    if len(chunk) == 1:
        return sender.send_nowait(chunk[0].payload, timeout_s=timeout_s)
    payload = encode_batch([item.payload for item in chunk], batch_head(chunk[0].home.session_id))
    return sender.send_nowait(payload, message_format=BATCH_FORMAT, timeout_s=timeout_s)
