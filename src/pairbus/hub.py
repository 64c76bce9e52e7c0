"""What the two clients share: one pair's decisions, events, ledger, spool and words for errors.

`client` (threads) and `aio` (tasks) are thin shells: they carry out the commands of a send's plan, and nothing else.
Decisions are taken under `lock`, which costs less than asking whether there are threads. Events are told after it is
released, so that a callback may call the client.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import cast

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus import sdk, telemetry
from pairbus.counters import SPOOL, Counters
from pairbus.errors import PairingError, SpoolError
from pairbus.ledger import Ledger, Tally
from pairbus.ledger.rows import FAILED_SEND, Cause, MeterKind
from pairbus.outgoing import DEFAULT_LIMIT, Order, Outgoing
from pairbus.pairing.events import (
    BacklogQueueFailed,
    DeadLettered,
    DestinationSkipped,
    Diverted,
    Event,
    FailedOver,
    Faulted,
    MaybeDuplicated,
    Moved,
    Paired,
    PairingCleared,
    PingRefused,
    PingSent,
    Spooled,
    SpoolForwarded,
    SpoolRefused,
    Stayed,
    Suspected,
    Unpaired,
)
from pairbus.pairing.failover import HEALTHY, Entity, State
from pairbus.pairing.forwarding import Inflow, queueing
from pairbus.pairing.life import Life, Lives
from pairbus.pairing.life import Side as SideName
from pairbus.pairing.options import SEND_TIMEOUT_S, SendAvailabilityPairedNamespaceOptions, primary_name_of
from pairbus.pairing.pair import Pair
from pairbus.pairing.policy import Failure, Kind, Reaction
from pairbus.pairing.sending import Command, Plan, Receipt, Reply, SenderState, Unsent, Where, first_timeout_s, sending
from pairbus.send_errors import (
    ClientClosed,
    PairedMessagingFactoryError,
    SendAvailabilityBacklogError,
)
from pairbus.sides import Side
from pairbus.spool import Entry, Spool, disk_threads, open_free
from pairbus.verdicts import closed_meanwhile, error_of, overhead_of

logger = logging.getLogger("pairbus")

WARNINGS = (
    *(Suspected, FailedOver, PingRefused, BacklogQueueFailed, Spooled, Unpaired, Faulted),
    *(DeadLettered, DestinationSkipped, MaybeDuplicated, SpoolRefused, Stayed),
)
"Events that somebody should look at."
DETAILS = (Diverted, Moved, PingSent, SpoolForwarded)
"Events that come by the thousand."
DISABLED = "PAIRBUS_DISABLED"
SWITCH = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("", "0", "false", "no", "off"), False)
LEDGER_CLOSE_S = 2.0  # what closing a client grants the last rows


class Hub:
    """One pair, as both shells and the upkeep see it."""

    def __init__(
        self,
        primary: Side,
        secondary: Side,
        options: SendAvailabilityPairedNamespaceOptions,
    ) -> None:
        if primary.authority.lower() == secondary.authority.lower():
            raise ValueError(f"primary and secondary are the same namespace, {primary.name}: a pair needs two")
        self.primary = primary
        self.secondary = secondary
        self.options = options
        self.lock = threading.Lock()
        self.primary_name = options.primary_name or primary_name_of(primary.authority)
        self._wanted_queues = options.backlog_queue_count
        self.pair = Pair(options, self.publish, random.randrange)
        self.lives = Lives()
        self.counters = Counters(self.spool_depth)
        self.spool: Spool | None = None
        self._stayed = 0
        "Messages that were left in a spool that is closed."
        self.inflow = Inflow()
        self.disk = disk_threads()
        "Wait for the spool where an event loop must not. The application's own threads may all be busy for long."
        self.ledger = None if options.ledger is None else Ledger(options.ledger, client=f"{self.primary_name}")
        self._ledger_names = {"primary": primary.name.lower(), "secondary": secondary.name.lower()}
        "A host in capital letters is the same host in every process's rows."
        self.is_paired = False
        "Pairing has completed; also true for a client that was told to start unpaired."
        self.is_closed = False
        self.straight_s = 0.0
        """What a send that goes straight to the primary may take; 0: it needs a closer look.

        The one number that a healthy send asks for, instead of all that it stands for: between two sends everything
        falls out of the processor's caches, and each object that is touched costs as much as a line of code.
        """
        self.loop: AbstractEventLoop | None = None
        "Of an asyncio client that was used."
        self.unregister = telemetry.register(self.primary_name, self.counters.snapshot)
        self.listeners: list[Callable[[Event], None]] = [] if options.on_event is None else [options.on_event]
        self.wake: Callable[[], None] = lambda: None
        "Tells the upkeep that clocks have changed."
        self._outbox: deque[Event] = deque()
        self._warned: set[str] = set()
        self._told_unpaired = False
        word = os.environ.get(DISABLED, "")
        self.pair.enabled = not SWITCH.get(word.strip().lower(), False)
        if not self.pair.enabled:
            logger.warning("%s=%s: %s is not paired, sends go to it only", DISABLED, word, primary.name)
        elif word.strip().lower() not in SWITCH:
            words = ", ".join(filter(None, SWITCH))
            logger.warning("%s=%s is ignored, %s is paired: it must be one of %s", DISABLED, word, primary.name, words)

    def __repr__(self) -> str:
        ended = self._ended
        away = [] if ended else [entity for entity in self.pair.entities() if entity.state is not HEALTHY]
        names = ", ".join(f"{entity.path} {entity.state.value}" for entity in away[:3])
        state = ended or ("plain" if not self.pair.enabled else names or "HEALTHY")
        more = f" and {len(away) - 3} more" if len(away) > 3 else ""
        spool = self.spool
        spooled = f" spool={spool.waiting}" if spool is not None and spool.waiting else ""
        return f"{self.primary.name} | {self.secondary.name} {state}{more} backlog={self.pair.rotation}{spooled}"

    def sender_repr(self, state: SenderState) -> str:
        entity = state.entity
        ended = self._ended
        if ended:
            return f"<PairedSender {entity.path} {ended}>"
        since_s = time.monotonic() - entity.since
        away = ""
        if entity.state is not HEALTHY:
            spooled = f" spooled={entity.spooled}" if entity.spooled else ""
            away = f" backlog={self.pair.rotation} diverted={entity.diverted - entity.spooled}{spooled}"
        return f"<PairedSender {entity.path} {entity.state.value}{away} for {since_s:.1f}s>"

    def states(self) -> dict[str, State]:
        with self.lock:
            now = time.monotonic()
            states = {entity.path: self.pair.failover.settle(entity, now) for entity in self.pair.entities()}
        self.deliver()
        return states

    # ── may it be used? ──

    def check(self) -> None:
        """Raise unless the client can be used."""
        if self.lives.faulted:
            raise PairedMessagingFactoryError(self.primary.name, self.secondary.name, self.lives.reason)
        if self.is_closed:
            raise ClientClosed(self.primary.name)

    @property
    def _ended(self) -> str:
        """Why every call raises, in few words; "" while the client can be used."""
        if self.lives.faulted:
            return f"faulted ({self.lives.first}: {self.lives.reason})"
        return "closed" if self.is_closed else ""

    def _look(self) -> None:
        """After each change of what `straight_s` stands for."""
        usable = self.is_paired and not self.is_closed and not self.lives.faulted
        self.straight_s = first_timeout_s(self.pair, SEND_TIMEOUT_S) if usable else 0.0

    def closes(self) -> None:
        self.is_closed = True
        self._look()

    def fault(self, side: SideName, reason: str) -> None:
        if self.lives.ended(side, Life.FAULTED, reason):
            self._look()
            self.publish(Faulted(side, reason))
            self.deliver()

    def closed_under_us(self, side: SideName) -> None:
        """Somebody closed a client of the SDK that was given to us."""
        if not self.is_closed:
            self.fault(side, f"the client of the {side} was closed by somebody else")

    # ── pairing ──

    @property
    def needs_upkeep(self) -> bool:
        """There is something to do besides sending; a process that was forked in an outage has clocks that run."""
        return self.pair.enabled and (self.options.enable_syphon or self.spool is not None or self.clocks_run)

    @property
    def clocks_run(self) -> bool:
        return self.pair.enabled and self.pair.next_due() is not None

    def open_spool(self) -> None:
        if self.options.spool_dir is None or self.spool is not None:  # pairing may be repeated
            return
        folder = os.fspath(self.options.spool_dir)
        spool = open_free(folder, pair=self.primary_name, max_bytes=self.options.spool_max_bytes)
        with self.lock:
            self.spool = spool
            is_needed = self.pair.enabled and not self.is_closed
        if not is_needed:  # the pairing was cleared meanwhile, or the client was closed
            self.close_spool()

    def close_spool(self) -> None:
        """When nobody forwards any more. What is being stored is stored; who comes later is told that it was not."""
        with self.lock:
            spool, self.spool = self.spool, None
        if spool is not None:
            spool.close()
            self._stayed = spool.waiting
            if spool.waiting and not self.is_closed:
                logger.warning("%d messages stay in %s for the next client", spool.waiting, spool.folder)

    def spool_depth(self) -> int:
        """Messages that wait in the spool, an earlier client's too; of one that was closed, what stayed there."""
        spool = self.spool
        return self._stayed if spool is None else spool.waiting

    def paired_with(self, queues: list[str]) -> None:
        """The caller delivers what this publishes, when it holds no lock any more."""
        with self.lock:
            self.options.backlog_queue_count = len(queues)
            self.pair.paired_with(queues)
            self.publish(Paired(self.primary.name, self.secondary.name, len(queues)))
        self._look()

    def pairing_completed(self) -> None:
        self.is_paired = True
        self._look()

    def pairing_begins(self) -> None:
        """Perhaps once more: what the options say then is what was found the last time."""
        self.options.backlog_queue_count = self._wanted_queues

    def pairing_failed(self, error: BaseException) -> bool:
        """Whether the client may start without its secondary; the error is the caller's otherwise.

        The caller delivers what this publishes, when it holds no lock any more.
        """
        if isinstance(error, SendAvailabilityBacklogError):
            self.options.backlog_queue_count = 0
        failure = sdk.failure_of(error, sending=False)
        is_away = failure is not None and self.options.policy.reaction(failure) is not Reaction.RAISE
        if self.options.require_secondary or not (is_away or isinstance(error, SendAvailabilityBacklogError)):
            return False
        if not self._told_unpaired:
            self._told_unpaired = True
            self.publish(Unpaired(self.primary.name, self.secondary.name, str(error)))
        return True

    def clear_pairing(self) -> None:
        self.check()
        with self.lock:
            self.pair.clear(time.monotonic())
            self.publish(PairingCleared(self.primary.name))
        self._look()
        self.deliver()

    def force(self, path: str, *, over: bool) -> None:
        """The operator's hand."""
        self.check()
        if over and not self.pair.has_elsewhere and (self.is_paired or not self.pair.enabled):
            raise PairingError(f"{path} was not failed over: {self.primary.name} is not paired, sends go to it only.")
        with self.lock:
            force = self.pair.force_failover if over else self.pair.force_healthy
            force(path, time.monotonic())
        self.deliver()

    def after_fork(self) -> None:
        """In the child: a lock of its own, no spool yet, no listener that speaks to the parent's loop.

        Its first send pairs again, which asks nobody when the queues are known, opens a spool, and starts what runs
        beside it. A child that never sends holds no spool, and no messages in it back.
        """
        self.lock = threading.Lock()
        self.is_paired = False
        self._outbox.clear()
        self.listeners = [] if self.options.on_event is None else [self.options.on_event]
        self.pair.pings.forget_running()
        self.loop = None
        self.spool, self._stayed = None, 0  # the parent's
        self.disk = disk_threads()
        self._look()

    def after_loop(self) -> None:
        """The event loop of this client has ended, and with it the pings that were under way, and all iterators."""
        with self.lock:
            self.pair.pings.forget_running()
        self.listeners = [] if self.options.on_event is None else [self.options.on_event]

    def release(self) -> None:
        """The last thing of a closed client."""
        self.unregister()
        self.close_spool()
        disk, self.disk = self.disk, disk_threads()  # for a send that is late: it hears that the spool is closed
        disk.shutdown(wait=False)
        if self.ledger is not None:
            self.ledger.close(LEDGER_CLOSE_S)

    # ── one send ──

    def entity(self, path: str) -> Entity:
        with self.lock:
            return self.pair.entity(path, time.monotonic())

    def needs_no_plan(self, entity: Entity) -> bool:
        """The next send goes to the primary: what nearly every send finds, so it costs nearly nothing."""
        return entity.state is HEALTHY and not self.waits(entity)

    def waits(self, entity: Entity) -> bool:
        """Messages of this entity wait in the spool, and will be forwarded: what a plain client left there will not."""
        spool = self.spool
        return spool is not None and self.pair.enabled and spool.has(entity.path)

    def plan(
        self, sender: SenderState, timeout_s: float, now: float, tried: Reply | None, *, tried_queue: str | None = None
    ) -> Plan:
        """What to do about one send. `tried`: an attempt was made at `now` already, and ended so."""
        with self.lock:
            if tried is None and self.waits(sender.entity):
                return queueing(self.pair, sender, timeout_s, now, self.inflow, partial(self.waits, sender.entity))
            return sending(self.pair, sender, timeout_s, now, tried=tried, tried_queue=tried_queue)

    def advance(self, plan: Plan, reply: Reply | None) -> Command | Receipt:
        """The next command, the first without a reply; or where the message is now; Unsent when no place took it.

        The caller delivers what this publishes, when it has nobody's turn any more.
        """
        try:
            with self.lock:
                return next(plan) if reply is None else plan.send(reply)
        except StopIteration as end:
            return cast(Receipt, end.value)

    def goes_home(self, entity: Entity) -> bool:
        """Sends of this entity go to the primary at this moment; asked again after waiting in line."""
        if entity.state is HEALTHY:
            return True
        with self.lock:
            return not self.pair.is_away(entity, time.monotonic())

    def proven(self, entity: Entity) -> None:
        """The primary has accepted a send without a plan while something was held against it."""
        with self.lock:
            self.pair.accepted(entity, time.monotonic())
        self.deliver()

    def sent(self, entity: Entity, receipt: Receipt, going: Outgoing) -> None:
        """Book-keeping of a send that ended well."""
        if receipt.unanswered is not None:
            with self.lock:
                for message_id, queue in going.doubted.items():
                    self.publish(MaybeDuplicated.unanswered(entity.path, message_id, queue))
            self.deliver()
        if receipt.where is Where.PRIMARY:
            with self.lock:
                self.counters.entity(entity.path).sent += len(going.messages)
            return
        if receipt.where is Where.SPOOL:
            with self.lock:
                waiting = len(going.messages) if self.spool is None else self.spool.waiting  # None: closed since
                entity.spooled += len(going.messages)
                self.pair.stored_away(entity, SPOOL, going.message_ids, outcome_unknown=bool(going.doubts))
                self.publish(Spooled(entity.path, len(going.messages), waiting))
            self.deliver()

    def diverted(
        self, entity: Entity, queue: str, message_ids: Sequence[str], *, outcome_unknown: bool = False
    ) -> None:
        """A backlog queue has stored these. Where nobody would hear an event of it, they are only counted."""
        if self.listeners or self.ledger is not None or logger.isEnabledFor(logging.DEBUG):
            with self.lock:
                self.pair.stored_away(entity, queue, tuple(message_ids), outcome_unknown=outcome_unknown)
            self.deliver()
            return
        with self.lock:
            entity.diverted += len(message_ids)
            self.counters.diverted(entity.path, queue, len(message_ids))

    def stored_away(self, entity: Entity, going: Outgoing, *, outcome_unknown: bool) -> None:
        """Tell what backlog queues have stored since the last time, whatever becomes of the rest of the call."""
        if not going.untold:
            return
        untold, going.untold = going.untold, ()
        for queue, ids in untold:
            self.diverted(entity, queue, ids, outcome_unknown=outcome_unknown)

    def error(self, unsent: Unsent, entity: Entity, going: Outgoing) -> BaseException:
        """What the caller gets whose message no place took."""
        self._failed(entity.path, going, unsent.failure.kind)
        return error_of(unsent, entity.path, going, ordered=self.options.ordered)

    def closed_meanwhile(self, closed: ClientClosed, entity: Entity, going: Outgoing) -> BaseException:
        self._failed(entity.path, going, Kind.COMMUNICATION)
        return closed_meanwhile(closed, entity.path, going)

    def managed(self, entity: Entity, failure: Failure | None) -> Reaction | None:
        """A request about scheduled messages ended; it tells of the entity what a send would."""
        now = time.monotonic()
        reaction = None
        with self.lock:
            if failure is None:
                self.pair.accepted(entity, now)
            else:
                reaction = self.pair.reaction(entity, failure, now)
                if reaction is Reaction.COUNT:
                    self.pair.failed(entity, failure, now)
        self.deliver()
        return reaction

    def pairing_takes_long(self, timeout_s: float) -> OperationTimeoutError:
        return OperationTimeoutError(
            message=f"pairing of {self.primary.name} with {self.secondary.name} has not completed within"
            f" {timeout_s:.1f} s. Nothing was sent by this call; pairing goes on."
        )

    def waited(self, path: str, going: Outgoing | None, late: Failure) -> BaseException:
        """A call that waited in line until its time was over ends before its first attempt."""
        if going is not None:
            self._failed(path, going, late.kind)
        assert late.error is not None
        return late.error

    def to_spool(self, entries: list[Entry]) -> Failure | None:
        """Blocks until the disk has them."""
        spool = self.spool
        try:
            if spool is None:
                raise SpoolError("The spool was closed with the pairing. This was not stored.")
            with self.lock:
                self.inflow.came(entries[0].path, len(entries), time.monotonic())
            spool.append(entries)
        except SpoolError as error:
            return Failure(Kind.INTERNAL, str(error), False, error)
        return None

    def first_attempt_ms(self, at: float | None) -> int | None:
        """A moment of the monotonic clock in milliseconds since 1970."""
        return None if at is None else int((time.time() - time.monotonic() + at) * 1000)

    def watch_size(self, entity: Entity, going: Outgoing, limit: int) -> None:
        """Warn once for each entity when a message that fits the primary may not fit a backlog queue."""
        message = max(going.messages, key=sdk.body_size)
        limit = limit or DEFAULT_LIMIT
        if sdk.body_size(message) < limit - 2 * ENVELOPE_DOUBT or entity.path in self._warned:
            return
        needed = overhead_of(entity.path, self.options.ordered)
        size = sdk.size(message)
        if limit - needed < size <= limit:
            self._warned.add(entity.path)
            logger.warning(
                "%s: a message of %d bytes fits the limit of %d, but not with the %d bytes that a backlog queue needs:"
                " while failed over it would be refused",
                entity.path,
                size,
                limit,
                needed,
            )

    # ── events, meters ──

    def publish(self, event: Event) -> None:
        """Note an event; `deliver` tells it. Called under the lock."""
        object.__setattr__(event, "at_s", time.time())  # nobody else has it yet; a copy costs ten times as much
        self._outbox.append(event)

    def deliver(self) -> None:
        """Tell what has gathered. A listener that fails is logged: a send must not fail because of it."""
        while True:
            try:
                event = self._outbox.popleft()
            except IndexError:
                return
            is_detail = isinstance(event, DETAILS)
            level = logging.DEBUG if is_detail else logging.WARNING if isinstance(event, WARNINGS) else logging.INFO
            if not is_detail or logger.isEnabledFor(level):
                logger.log(level, "%s", event)
            with self.lock:
                self.counters.note(event)
            if self.ledger is not None:
                self.ledger.record(event)
            for listener in list(self.listeners):
                try:
                    listener(event)
                except Exception:
                    logger.exception("on_event failed for %s", event)
            if not is_detail:  # those change no clock, and waking a thread costs more than a diverted send
                self.wake()

    def tell(self, event: Event) -> None:
        """Publish and deliver, outside the lock."""
        self.publish(event)
        self.deliver()

    def meter(
        self,
        side: SideName,
        entity: str,
        kind: MeterKind,
        size_bytes: int,
        *,
        count: int = 1,
        outcome: str = "ok",
        cause: Cause = "application",
        billable: int | None = None,
    ) -> None:
        if self.ledger is not None:
            namespace = self._ledger_names[side]
            self.ledger.meter(side, namespace, entity, kind, size_bytes, count, outcome, cause=cause, billable=billable)

    def tally(self, entity: str) -> Tally | None:
        """For the sends that go straight to the primary."""
        ledger, namespace = self.ledger, self._ledger_names["primary"]
        return None if ledger is None else ledger.tally("primary", namespace, entity, "send")

    def meter_send(self, side: SideName, entity: str, going: Outgoing, failure: Failure | None, cause: Cause) -> None:
        """One attempt, counted and billed message by message."""
        if self.ledger is not None:
            size_bytes, billable = going.size()
            outcome = "ok" if failure is None else failure.kind.value
            count = len(going.messages)
            self.meter(side, entity, "send", size_bytes, count=count, outcome=outcome, cause=cause, billable=billable)

    def meter_request(self, entity: str, going: Outgoing | None, failure: Failure | None) -> None:
        """To schedule messages is to send them; to cancel them is a request."""
        if going is not None:
            self.meter_send("primary", entity, going, failure, "application")
        else:
            self.meter("primary", entity, "management", 0, outcome="ok" if failure is None else failure.kind.value)

    def meter_pairing(self, entity: str, count: int, outcome: str) -> None:
        self.meter("secondary", entity, "management", 0, count=count, outcome=outcome, cause="pairing")

    def _failed(self, path: str, going: Outgoing, kind: Kind) -> None:
        """A call ends with an error for its caller."""
        self.counters.entity(path).failed += len(going.messages)
        self.meter("primary", path, FAILED_SEND, 0, count=len(going.messages), outcome=kind.value)

    @contextmanager
    def pairing_for(self, entity: Entity, going: Outgoing) -> Iterator[None]:
        """A call that has to wait for pairing fails with it."""
        try:
            yield
        except Exception as error:
            failure = sdk.failure_of(error, sending=False)
            self._failed(entity.path, going, Kind.INTERNAL if failure is None else failure.kind)
            raise

    def meter_syphon(self, side: SideName, entity: str, kind: str, count: int, size_bytes: int, outcome: str) -> None:
        self.meter(side, entity, cast(MeterKind, kind), size_bytes, count=count, outcome=outcome, cause="syphon")

    def receiver_meter(self, entity: str) -> sdk.Meter | None:
        if self.ledger is None:
            return None

        def meter(kind: str, count: int, size_bytes: int, outcome: str) -> None:
            self.meter("primary", entity, cast(MeterKind, kind), size_bytes, count=count, outcome=outcome)

        return meter


LONGEST_S = 1e9  # clocks take no endless time
ENVELOPE_DOUBT = 4096  # bytes of properties and aliases that a cheap look at a message does not see


def timeout_of(timeout: float | None) -> float:
    if timeout is None:
        return SEND_TIMEOUT_S
    if timeout <= 0:
        raise ValueError("The timeout must be greater than 0.")  # the SDK's own words
    return min(timeout, LONGEST_S)


def left_of(began: float) -> float:
    """Of the time of a send that names none, begun at this moment of the monotonic clock."""
    return max(began + SEND_TIMEOUT_S - time.monotonic(), 0.001)


def order_of(options: SendAvailabilityPairedNamespaceOptions) -> Order | None:
    return Order() if options.ordered else None
