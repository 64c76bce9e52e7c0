"""One task of a stream: receive under lock, stage, seal, complete. Rows are yielded afterwards, by who has called.

| it ends …                 | the stage                 | its messages                                        |
| ------------------------- | ------------------------- | --------------------------------------------------- |
| before the seal           | a file that nobody names  | locked, and come again                              |
| after the seal            | the partition's, for good | some still in the queue: recognised when they come  |
| after they are completed  | the same                  | gone from the queue                                 |
| second to another attempt | thrown away               | given back; the rows are those of the other attempt |
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import islice

from pairbus.spark.options import Options
from pairbus.spark.perseverance import persevere
from pairbus.spark.stage_file import LOCKED_UNTIL, Identity, Sealed, StageWriter, annotations_of, identity_of
from pairbus.spark.staging import Entry, Owner, Staging
from pairbus.transport import SESSION_TIMEOUT, Carrier, NextSession, Received, Receiver, Refused, TransportError

CREDIT = 512  # 512 × 256 KiB = 128 MiB at the very worst
FIRST_WAIT_S = 0.5  # for messages that must be there: the driver has seen some
NEXT_WAIT_S = 0.2
RECEIVE_MAX_S = 10.0
SESSIONS_MAX = 100  # that one task holds at once: each has a link of its own until its messages are completed
LATE_S = 1_200.0  # since its plan: a task that seals later looks whether the log has been cleaned meanwhile
LOCK_SHARE = 0.4  # of a lock's time, for receiving; the rest is for the disk and for completing

logger = logging.getLogger("pairbus.spark")


@dataclass(frozen=True, slots=True)
class Share:
    """What one task of a batch is to receive."""

    owner: Owner
    batch: int
    partition: int
    max_messages: int
    head: int
    "Of the log, when the batch was planned."
    unsure: tuple[int, ...]
    "Seals up to there whose messages may still be in the queue."
    planned_s: float = 0.0
    "When the driver gave it to Spark, by its clock."


async def take_in(options: Options, staging: Staging, share: Share, carrier: Carrier) -> Entry | None:
    """The seal of this partition: made now, or found. None when the batch is over and this attempt is late."""
    tracker = await asyncio.to_thread(SealTracker, staging, share)
    if await asyncio.to_thread(tracker.is_decided):
        return tracker.seal

    async def attempt() -> Entry | None:
        return await _attempt(options, tracker, carrier)

    return await persevere(attempt, options, options.read_path, options.patience_s)


class SealTracker:
    """What the log says about one partition, and which messages have been sealed since it was planned."""

    def __init__(self, staging: Staging, share: Share) -> None:
        self.staging = staging
        self.share = share
        self.seal: Entry | None = None
        self.known = Sealed(staging.storage)
        "Messages that some seal has and that may come nevertheless."
        self._head = share.head
        self._over = False
        self._read(entry for entry in map(staging.entry, share.unsure) if entry is not None)

    def is_decided(self, at_most: int | None = None) -> bool:
        """Read on in the log: whether this partition is sealed, or its batch over. Otherwise `known` is up to date, or,
        after so many entries, a step nearer."""
        entries = list(islice(self.staging.entries_after(self._head), at_most))
        for entry in entries:
            self._head = entry.number
            self._over = self._over or (entry.ends and entry.batch >= self.share.batch)
            if (entry.kind, entry.batch, entry.partition) == ("seal", self.share.batch, self.share.partition):
                self.seal = entry
        if self.seal is not None or self._over:
            return True
        self._read(entry for entry in entries if entry.kind == "seal")
        return False

    def _read(self, seals: Iterable[Entry]) -> None:
        for seal in seals:
            if seal.rows == 0:
                continue
            try:
                self.known.add(seal.stage, seal.spans if seal.number > self.share.head else None)
            except FileNotFoundError:
                # Removed only after the queue had forgotten every message of it: none of them can come any more.
                assert seal.number <= self.share.head

    def try_to_seal(self, stage: StageWriter) -> Entry | None:
        """Seal the stage, or learn who was first. Returns when the partition is decided; the seal if it is ours."""
        spans = stage.spans()
        while True:
            without = tuple(sorted(row for identity, row in stage.identities.items() if identity in self.known))
            entry = Entry(
                self._head + 1,
                "seal",
                self.share.batch,
                self.share.partition,
                stage.name if stage.rows else "",
                stage.rows - len(without),
                without,
                spans,
            )
            if not self.staging.append(entry):
                if self.is_decided(at_most=1):  # this entry is there; after it there is most likely none
                    return None
                continue
            if not self._is_late() or self.staging.has_plan(self.share.batch):
                self.seal = entry
                return entry
            # So late that the log has been cleaned up to here: an entry in the past that nobody will read.
            self.staging.take_back(entry)
            self._over = True
            return None

    def _is_late(self) -> bool:
        """Whether the log may have been cleaned since the plan: it stays for an hour after the commit. Both clocks are
        right within minutes, or the storage would refuse their requests."""
        return abs(time.time() - self.share.planned_s) > LATE_S


async def _attempt(options: Options, tracker: SealTracker, carrier: Carrier) -> Entry | None:
    share, staging = tracker.share, tracker.staging
    stage = StageWriter(staging.storage, staging.new_stage(share.batch, share.partition))
    intakes: list[_Intake] = []
    ours = None
    try:
        await _fill(options, tracker, carrier, stage, intakes)
        # In threads: the storage may take its time, and the connection must go on meanwhile.
        if stage.rows:
            await asyncio.to_thread(stage.finish)
        ours = await asyncio.to_thread(tracker.try_to_seal, stage)
        if ours is not None and all([await intake.complete() for intake in intakes]):
            await asyncio.to_thread(staging.confirm, ours.number)
    finally:
        if ours is None or not ours.stage:
            await asyncio.to_thread(stage.discard)
        for intake in intakes:
            await _close(intake)
    return tracker.seal


async def _fill(
    options: Options, tracker: SealTracker, carrier: Carrier, stage: StageWriter, intakes: list[_Intake]
) -> None:
    """Receive into the stage: from the entity, or from one session after another, each of which stays accepted."""
    share, path, timeout_s = tracker.share, options.read_path, options.timeout_s
    if not options.sessions:
        receiver = await carrier.receiver(path, credit=CREDIT, timeout_s=timeout_s)
        intakes.append(_Intake(receiver, stage, tracker.known, share.max_messages))
        await intakes[-1].receive()
        return
    loop, deadline, wait_s = asyncio.get_running_loop(), float("inf"), FIRST_WAIT_S
    while stage.rows < share.max_messages and len(intakes) < SESSIONS_MAX and loop.time() < deadline:
        try:
            receiver = await carrier.receiver(path, credit=CREDIT, timeout_s=timeout_s, session=NextSession(wait_s))
        except Refused as refused:
            if refused.condition != SESSION_TIMEOUT:
                raise
            return
        intakes.append(_Intake(receiver, stage, tracker.known, share.max_messages, deadline))
        await intakes[-1].receive()
        deadline, wait_s = intakes[-1].deadline, NEXT_WAIT_S


async def _close(intake: _Intake) -> None:
    """Give back what was not completed, so that whoever comes next need not wait for the lock."""
    receiver = intake.receiver
    try:
        if intake.held and receiver.over is None:
            await receiver.release(intake.held.values())
        await receiver.close()
    except TransportError as error:
        logger.info("messages stay locked until their time is over: %s", error)


class _Intake:
    """Messages under lock on their way into a stage."""

    def __init__(
        self,
        receiver: Receiver,
        stage: StageWriter,
        known: Container[Identity],
        max_messages: int,
        deadline: float = float("inf"),
    ) -> None:
        self.held: dict[int, Received] = {}
        "By delivery id: received, neither completed nor given back."
        self.receiver = receiver
        self.deadline = deadline
        "Until when to receive; with the first message it is known."
        self._stage = stage
        self._known = known
        self._max_messages = max_messages

    async def receive(self) -> None:
        """Until there is nothing more, the share is full, or the first lock has run for long enough."""
        loop = asyncio.get_running_loop()
        wait_s = FIRST_WAIT_S
        while (left := self._max_messages - self._stage.rows) > 0 and loop.time() < self.deadline:
            # Half of what is left: the receiver grants again by itself, and must not get more than the share.
            self.receiver.credit = min(CREDIT, max(left // 2, 1))
            batch = await self.receiver.receive(left, wait_s)
            if not batch:
                break
            if self.deadline == float("inf"):
                self.deadline = loop.time() + _receive_s(batch[0].payload)
            await self._add(batch)
            wait_s = NEXT_WAIT_S
        self.receiver.credit = 0
        await self.receiver.pause()
        left = self._max_messages - self._stage.rows
        if self.receiver.buffered and left > 0:
            await self._add(await self.receiver.receive(left, 0.0))

    async def _add(self, batch: list[Received]) -> None:
        sealed = []
        for message in batch:
            identity = identity_of(message.payload)
            if identity is not None and identity in self._known:
                sealed.append(message)
                continue
            self.held[message.delivery_id] = message
            if identity is None or identity not in self._stage.identities:
                self._stage.add(message.payload, identity)
            message.payload = b""  # it is in the stage; a share may be larger than the memory
        if sealed:
            logger.info("%d messages came again that were sealed before", len(sealed))
            await _settled(self.receiver, sealed)

    async def complete(self) -> bool:
        """Whether the queue has forgotten all of them. Those that it has not come again, and are recognised."""
        held, self.held = self.held, {}
        return await _settled(self.receiver, list(held.values()))


async def _settled(receiver: Receiver, messages: list[Received]) -> bool:
    try:
        await receiver.complete(messages)
    except TransportError as error:
        logger.warning("sealed messages were not completed, and will be when they come again: %s", error)
        return False
    return True


def _receive_s(payload: bytes) -> float:
    """How long to go on receiving after this message came."""
    locked_until = annotations_of(payload)[0].get(LOCKED_UNTIL)
    if not isinstance(locked_until, int):
        return RECEIVE_MAX_S
    # Clocks may differ: the result is a pace and no promise. Nothing depends on a lock that holds.
    return min(max((locked_until / 1000 - time.time()) * LOCK_SHARE, 1.0), RECEIVE_MAX_S)
