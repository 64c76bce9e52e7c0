"""One task of a stream: receive under lock, stage, seal, complete. The caller yields the rows afterwards.

| it ends …                 | the stage                 | its messages                                        |
| ------------------------- | ------------------------- | --------------------------------------------------- |
| before the seal           | a file that is not used   | locked, and come again                              |
| without an answer to it   | kept: the log may name it | given back; recognised when they come, if it is     |
|                           |                           | sealed                                              |
| after the seal            | the partition's, for good | some still in the queue: recognised when they come  |
| after they are completed  | the same                  | gone from the queue                                 |
| second to another attempt | thrown away               | given back; the rows are those of the other attempt |

Order within a session: no two partitions of a batch have messages of one session. A task that accepts a session of
which another partition has sealed messages leaves the rest of it to a later batch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import islice

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import PROPERTIES, sections
from pairbus.amqp.types import decode
from pairbus.spark.options import Options
from pairbus.spark.perseverance import persevere
from pairbus.spark.staging.log import LogEntry, Owner, Staging
from pairbus.spark.staging.stage_file import (
    LOCKED_UNTIL,
    Sealed,
    StagedIdentity,
    StageWriter,
    annotations_of,
    identity_of,
    read_payloads,
)
from pairbus.transport import SESSION_TIMEOUT, Carrier, NextSession, ReceivedMessage, Receiver, Refused, TransportError

CREDIT = 512  # 512 × 256 KiB = 128 MiB at the very worst
FIRST_WAIT_S = 0.5  # for messages that should be there: the driver has seen some
NEXT_WAIT_S = 0.2
RECEIVE_MAX_S = 10.0
SESSIONS_MAX = 100  # sessions that one task holds at once: each has its own link until its messages are completed
# Seconds since the plan. A task that starts later than FRESH_S first checks whether its batch is over; otherwise it
# would learn this when it seals, after it has received in vain. A task that seals later than LATE_S checks whether the
# log has been cleaned meanwhile: entries stay for an hour after the commit.
FRESH_S = 10.0
LATE_S = 1_200.0
SESSION_FIELD = 10  # of the properties: group-id
SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
LOCK_SHARE = 0.4  # part of a lock's time for receiving; the rest is for the disk and for completing

logger = logging.getLogger("pairbus.spark")


@dataclass(frozen=True, slots=True)
class TaskShare:
    """Says how much one task of a batch receives."""

    owner: Owner
    batch: int
    partition: int
    max_messages: int
    head: int
    "Last entry of the log when the batch was planned."
    unsure: tuple[int, ...]
    "Numbers of seals up to `head` whose messages may still be in the queue."
    max_bytes: int | None = None
    planned_s: float = 0.0
    "Time at which the driver gave the share to Spark, by its clock."
    is_fresh: bool = False
    "True when no earlier attempt can have sealed this partition, as far as driver and Spark know."


async def take_in(options: Options, staging: Staging, share: TaskShare, carrier: Carrier) -> LogEntry | None:
    """Return the seal of this partition: made now, or found. None when the batch is over and this attempt is late."""
    tracker = await asyncio.to_thread(
        SealTracker, staging, share, by_session=options.sessions and options.session is None
    )
    if not share.is_fresh or tracker.is_older_than(FRESH_S):
        if await asyncio.to_thread(tracker.is_decided):
            return tracker.seal

    async def attempt() -> LogEntry | None:
        while True:
            try:
                return await _attempt(options, tracker, carrier)
            except _SessionOvertaken as error:
                logger.info("session %r was sealed by another partition meanwhile; receiving again", str(error))

    return await persevere(attempt, options, options.read_path, options.patience_s)


class _SessionOvertaken(Exception):
    """Another partition has sealed messages of a session that this one has received: its lock was lost."""


class SealTracker:
    """The log as one partition sees it: it reads the seals of others, and appends the seal of its own stage."""

    def __init__(self, staging: Staging, share: TaskShare, *, by_session: bool = False) -> None:
        self.staging = staging
        self.share = share
        self.sessions_elsewhere: set[str] = set()
        "Sessions of which other partitions of this batch have sealed messages."
        self._by_session = by_session
        self.seal: LogEntry | None = None
        self.sealed = Sealed(staging.storage)
        "Messages that are in a seal and may be received again."
        self._head = share.head
        self._over = False
        self._read(entry for entry in map(staging.entry, share.unsure) if entry is not None)

    def is_decided(self, at_most: int | None = None) -> bool:
        """Read on in the log; return whether this partition is sealed, or its batch over. Otherwise `known` is up to
        date, or, after `at_most` entries, a step nearer."""
        entries = list(islice(self.staging.entries_after(self._head), at_most))
        for entry in entries:
            self._head = entry.number
            self._over = self._over or (entry.ends and entry.batch >= self.share.batch)
            if (entry.kind, entry.batch, entry.partition) == ("seal", self.share.batch, self.share.partition):
                self.seal = entry
        if self.seal is not None or self._over:
            return True
        seals = [entry for entry in entries if entry.kind == "seal"]
        self._read(seals)
        if self._by_session:
            self._note_sessions(seal for seal in seals if seal.batch == self.share.batch and seal.rows)
        return False

    def _note_sessions(self, seals: Iterable[LogEntry]) -> None:
        for seal in seals:
            for payloads in read_payloads(self.staging.storage, seal.stage, frozenset(seal.without)):
                self.sessions_elsewhere.update(filter(None, map(_session_of, payloads)))

    def _read(self, seals: Iterable[LogEntry]) -> None:
        for seal in seals:
            if seal.rows == 0:
                continue
            try:
                self.sealed.add(seal.stage, seal.spans if seal.number > self.share.head else None)
            except FileNotFoundError:
                # A stage is removed only after the queue has deleted all its messages: none of them can come any more.
                assert seal.number <= self.share.head

    def try_to_seal(self, stage: StageWriter, sessions: frozenset[str] = frozenset()) -> LogEntry | None:
        """Seal the stage, or find the seal that came first. Returns the seal if it is ours, else None."""
        spans = stage.spans()
        while True:
            if overtaken := sessions & self.sessions_elsewhere:
                # Not sealed without these messages: all messages of a sealed stage count as received.
                raise _SessionOvertaken(min(overtaken))
            without = tuple(sorted(row for identity, row in stage.identities.items() if identity in self.sealed))
            entry = LogEntry(
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
                if self.is_decided(at_most=1):  # this entry exists; most likely there is none after it
                    return None
                continue
            if not self.is_older_than(LATE_S) or self.staging.has_plan(self.share.batch):
                self.seal = entry
                return entry
            # So late that the log has been cleaned up to here: an entry in the past, which is never read.
            self.staging.take_back(entry)
            self._over = True
            return None

    def is_older_than(self, age_s: float) -> bool:
        """Tell whether the driver gave out the share longer ago than `age_s`. The two clocks differ by minutes at most,
        or the storage would refuse their requests."""
        return abs(time.time() - self.share.planned_s) > age_s


async def _attempt(options: Options, tracker: SealTracker, carrier: Carrier) -> LogEntry | None:
    share, staging = tracker.share, tracker.staging
    stage = StageWriter(staging.storage, staging.new_stage(share.batch, share.partition))
    intakes: list[_Intake] = []
    ours, may_be_sealed = None, False
    try:
        await _fill(options, tracker, carrier, stage, intakes)
        # In threads: the storage may be slow, and the connection must go on meanwhile.
        if stage.rows:
            await asyncio.to_thread(stage.finish)
        sessions = frozenset(filter(None, (intake.receiver.session_id for intake in intakes if intake.held)))
        may_be_sealed = True  # until there is an answer: the storage may have stored a seal and then failed
        ours = await asyncio.to_thread(tracker.try_to_seal, stage, sessions)
        may_be_sealed = ours is not None
        if ours is not None and all([await intake.complete() for intake in intakes]):
            await asyncio.to_thread(staging.confirm, ours.number)
    except _SessionOvertaken:
        may_be_sealed = False
        raise
    finally:
        for intake in intakes:
            await _close(intake)
        # A stage that no seal names is removed with the others of its batch; a seal without its stage ends the stream.
        if not (may_be_sealed and stage.rows):
            await asyncio.to_thread(stage.discard)
    return tracker.seal


async def _fill(
    options: Options, tracker: SealTracker, carrier: Carrier, stage: StageWriter, intakes: list[_Intake]
) -> None:
    """Receive into the stage: from the entity, or from one session after another, each of which stays accepted."""
    quota = _Quota(tracker.share)
    if not options.sessions:
        receiver = await carrier.receiver(options.read_path, credit=quota.credit, timeout_s=options.timeout_s)
        intakes.append(_Intake(receiver, stage, tracker.sealed, quota))
        await intakes[-1].receive()
        return
    loop, deadline, wait_s = asyncio.get_running_loop(), float("inf"), FIRST_WAIT_S
    while quota.left and len(intakes) < SESSIONS_MAX and loop.time() < deadline:
        accepted = await _accepted(options, carrier, wait_s)
        if accepted is None:
            return
        intakes.append(_Intake(accepted, stage, tracker.sealed, quota, deadline))
        if options.session is None and (
            await asyncio.to_thread(tracker.is_decided) or accepted.session_id in tracker.sessions_elsewhere
        ):
            return  # the service would offer the same session again
        await intakes[-1].receive()
        if options.session is not None:
            return
        deadline, wait_s = intakes[-1].deadline, NEXT_WAIT_S


async def _accepted(options: Options, carrier: Carrier, wait_s: float) -> Receiver | None:
    """Accept the session of the option, or the next available one; None when other receivers have them all."""
    try:
        return await carrier.receiver(
            options.read_path,
            credit=CREDIT,  # no credit is granted before the first receive
            timeout_s=options.timeout_s,
            session=options.session if options.session is not None else NextSession(wait_s),
        )
    except Refused as refused:
        if refused.condition not in (SESSION_TIMEOUT, SESSION_CANNOT_BE_LOCKED):
            raise
        return None


class _Quota:
    """Counts how much a task may still receive, over all of its receivers."""

    def __init__(self, share: TaskShare) -> None:
        self._share = share
        self._count = 0
        self._size = 0
        self._is_full = False

    @property
    def left(self) -> int:
        """Messages that may still be taken."""
        return 0 if self._is_full else self._share.max_messages - self._count

    @property
    def credit(self) -> int:
        """Messages to ask for at once: half of those left, because a receiver grants again by itself."""
        credit, max_bytes = min(CREDIT, max(self.left // 2, 1)), self._share.max_bytes
        if max_bytes is None:
            return credit
        mean = self._size / self._count if self._count else max_bytes
        return max(min(credit, int((max_bytes - self._size) / mean / 2)), 1)

    def takes(self, size: int) -> bool:
        """Count a message of this size; False: it is too large for the room left, and then no further message fits.

        The first message of the first partition always fits: a batch must not stay empty for its size.
        """
        first = self._count == 0 and self._share.partition == 0
        if self.left and (self._share.max_bytes is None or first or self._size + size <= self._share.max_bytes):
            self._count += 1
            self._size += size
            return True
        self._is_full = True
        return False


async def _close(intake: _Intake) -> None:
    """Give back messages that were not completed, so that the next receiver need not wait for the lock."""
    receiver = intake.receiver
    try:
        if intake.held and receiver.over is None:
            await receiver.release(intake.held.values())
        await receiver.close()
    except TransportError as error:
        logger.info("messages stay locked until their time is over: %s", error)


class _Intake:
    """Receives messages under lock and writes them into a stage."""

    def __init__(
        self,
        receiver: Receiver,
        stage: StageWriter,
        sealed: Container[StagedIdentity],
        quota: _Quota,
        deadline: float = float("inf"),
    ) -> None:
        self.held: dict[int, ReceivedMessage] = {}
        "Messages by delivery id: received, neither completed nor given back."
        self.receiver = receiver
        self.deadline = deadline
        "Time until which to receive; known with the first message."
        self._stage = stage
        self._sealed = sealed
        self._quota = quota

    async def receive(self) -> None:
        """Receive until there are no more messages, the share is full, or the first lock has run for long enough."""
        loop = asyncio.get_running_loop()
        wait_s = FIRST_WAIT_S
        while (left := self._quota.left) > 0 and loop.time() < self.deadline:
            self.receiver.credit = self._quota.credit
            batch = await self.receiver.receive(left, wait_s)
            if not batch:
                break
            if self.deadline == float("inf"):
                self.deadline = loop.time() + _receive_s(batch[0].payload)
            await self._add(batch)
            wait_s = NEXT_WAIT_S
        self.receiver.credit = 0
        await self.receiver.pause()
        if self.receiver.buffered and self._quota.left > 0:
            await self._add(await self.receiver.receive(self._quota.left, 0.0))

    async def _add(self, batch: list[ReceivedMessage]) -> None:
        sealed, surplus = [], []
        for message in batch:
            identity = identity_of(message.payload)
            if identity is not None and identity in self._sealed:
                sealed.append(message)
                continue
            if not self._quota.takes(len(message.payload)):
                surplus.append(message)
                continue
            self.held[message.delivery_id] = message
            if identity is None or identity not in self._stage.identities:
                self._stage.add(message.payload, identity)
            message.payload = b""  # the payload is in the stage; a share may be larger than the memory
        if sealed:
            logger.info("%d messages came again that were sealed before", len(sealed))
            await _settled(self.receiver, sealed)
        if surplus:
            await self.receiver.release(surplus)

    async def complete(self) -> bool:
        """Complete the messages; return whether all succeeded. The others are received again, and recognised."""
        held, self.held = self.held, {}
        return await _settled(self.receiver, list(held.values()))


async def _settled(receiver: Receiver, messages: list[ReceivedMessage]) -> bool:
    try:
        await receiver.complete(messages)
    except TransportError as error:
        logger.warning("sealed messages were not completed, and will be when they come again: %s", error)
        return False
    return True


def _session_of(payload: bytes) -> str | None:
    """Return the session of a message; None when it has none, or cannot be read."""
    try:
        for code, _, value_at, _ in sections(payload):
            if code == PROPERTIES:
                fields = decode(payload, value_at)[0]
                return str(fields[SESSION_FIELD]) if len(fields) > SESSION_FIELD else None
    except (ProtocolError, ValueError, TypeError, IndexError):
        pass
    return None


def _receive_s(payload: bytes) -> float:
    """Return how long to go on receiving after this message came."""
    locked_until = annotations_of(payload)[0].get(LOCKED_UNTIL)
    if not isinstance(locked_until, int):
        return RECEIVE_MAX_S
    # Clocks may differ: the result is a pace, not a promise. Correctness does not depend on a lock that holds.
    return min(max((locked_until / 1000 - time.time()) * LOCK_SHARE, 1.0), RECEIVE_MAX_S)
