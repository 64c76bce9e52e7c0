"""One send, from its call to the place where the message is safe, as a generator of commands.

The shells (threads, asyncio, the simulation) perform what it yields and tell how that ended; every decision is here.

    plan = sending(pair, sender, timeout_s, now)
    command = next(plan)
    while True: command = plan.send(Reply(now, failure))      # StopIteration.value is the Receipt

It ends with a `Receipt`, or raises `Unsent`: the caller still owns the message, or those of it that were not stored.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum

from pairbus.pairing.failover import FAILED_OVER, HELD_OVER, Entity
from pairbus.pairing.options import PRIMARY_SHARE
from pairbus.pairing.pair import Pair, Route
from pairbus.pairing.policy import BUSY_WAIT_S, MESSAGE_FAULTS, Failure, Kind, Reaction

RETRY_PAUSES_S = (0.1, 0.4)  # between the beginnings of two attempts: a connection takes the SDK half a second to open
LAST_RETRY_S = 0.6  # since the first began: who needs longer for two attempts makes no third, so that all three fit
OPENING_S = 1.5  # the SDK takes half a second for a connection and its link, and a second at 100 ms to the service
OPENING_SHARE = 0.75  # of the caller's first second, at least
ELSEWHERE_S = 1.0  # what a backlog queue needs after it: a connection too, and the grace of an attempt that was late
HURRIED_S = 0.5  # in less, no connection was ever opened
LEAST_S = 0.1  # an attempt with less says nothing about the place that does not answer
QUICK_PAUSE_S = max(RETRY_PAUSES_S)
SPOOL_RESERVE_S = 0.5


class Where(Enum):
    PRIMARY = "primary"
    BACKLOG = "backlog"
    SPOOL = "spool"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The message is safe, here."""

    where: Where
    queue: str | None = None
    "The backlog queue."
    unanswered: str | None = None
    "A backlog queue that did not answer before, and may have stored the message too."


@dataclass(frozen=True, slots=True)
class ToPrimary:
    timeout_s: float
    fresh: bool
    "On a new connection: the one in use may have been closed by the service while it was idle."
    trial: bool
    "Goes to the primary although the entity is failed over."


@dataclass(frozen=True, slots=True)
class ToBacklog:
    queue: str
    timeout_s: float
    fresh: bool
    first_attempt_at: float | None
    "When the first attempt whose outcome is unknown began; None: nobody else can have stored the message."


@dataclass(frozen=True, slots=True)
class ToSpool:
    first_attempt_at: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Command = ToPrimary | ToBacklog | ToSpool | Pause


@dataclass(frozen=True, slots=True)
class Reply:
    """How a command ended."""

    now: float
    failure: Failure | None = None
    rerouted: bool = False
    "The command was not carried out, because meanwhile the entity went the other way."
    waited: bool = False
    "Nor was it, because its turn did not come in time. The failure says so, and nothing about the place."
    hurried: bool = False
    "It had less time than any attempt needs: that it is late says nothing about the place either."


class Unsent(Exception):
    """No place took the message."""

    def __init__(self, failure: Failure, where: Where, *, outcome_unknown: bool = False) -> None:
        super().__init__(failure.text)
        self.failure = failure
        "The last one."
        self.where = where
        "Who said so."
        self.outcome_unknown = outcome_unknown
        "An attempt of this call may have stored the message all the same."


class SenderState:
    """What one sender remembers between its sends."""

    __slots__ = ("entity", "queue")

    def __init__(self, entity: Entity) -> None:
        self.entity = entity
        self.queue: str | None = None
        "The backlog queue that it picked, and keeps while it works."


class _Call:
    """The clock and the memory of one send."""

    __slots__ = (
        *("attempts", "away_failure", "deadline", "failure", "first_attempt_at", "now", "primary_left_s"),
        *("tries_since", "unanswered"),
    )

    def __init__(self, timeout_s: float, now: float, primary_share: float) -> None:
        self.now = now
        self.deadline = now + timeout_s
        self.primary_left_s = timeout_s * primary_share
        self.attempts = 0
        "On the primary, since the last time that the entity was healthy."
        self.tries_since = now
        "When the first of them began."
        self.first_attempt_at: float | None = None
        "Of those that may have stored the message all the same, at the primary or in another backlog queue."
        self.failure: Failure | None = None
        "The last one of the primary."
        self.away_failure: Failure | None = None
        "The last one of a backlog queue."
        self.unanswered: str | None = None
        "The first backlog queue that may have stored the message all the same."

    @property
    def left_s(self) -> float:
        return self.deadline - self.now

    def remember(self, failure: Failure, started: float) -> None:
        if failure.outcome_unknown and self.first_attempt_at is None:
            self.first_attempt_at = started

    def remember_away(self, queue: str, failure: Failure, started: float) -> None:
        self.remember(failure, started)
        self.away_failure = failure
        if failure.outcome_unknown and self.unanswered is None:
            self.unanswered = queue

    def stored(self, where: Where, queue: str | None = None) -> Receipt:
        return Receipt(where, queue, self.unanswered)

    def unsent(self, failure: Failure, where: Where) -> Unsent:
        return Unsent(failure, where, outcome_unknown=failure.outcome_unknown or self.first_attempt_at is not None)


Plan = Generator[Command, Reply, Receipt]


def sending(
    pair: Pair,
    sender: SenderState,
    timeout_s: float,
    now: float,
    *,
    behind_spool: bool = False,
    tried: Reply | None = None,
    tried_queue: str | None = None,
) -> Plan:
    """`behind_spool`: messages of this entity wait in the spool, and this one queues behind them.

    `tried`: the first attempt needs no plan on a healthy entity, nor away where `usual_queue` names the queue
    (`tried_queue`); it began at `now`, and this is how it ended.
    """
    call = _Call(timeout_s, now, PRIMARY_SHARE if pair.has_elsewhere else 1.0)
    if behind_spool:
        return (yield from _to_spool(call))
    receipt = None
    if tried is not None and tried_queue is not None:
        receipt = yield from _away(pair, sender, call, tried=tried, tried_queue=tried_queue)
    elif tried is not None:
        receipt = yield from _home(pair, sender, call, tried=tried)
    while receipt is None:
        route = pair.route(sender.entity, call.now, may_try=call.failure is None)
        if route is Route.AWAY:
            receipt = yield from _away(pair, sender, call)
        else:
            receipt = yield from _home(pair, sender, call, trial=route is Route.TRIAL)
    return receipt


def usual_queue(pair: Pair, sender: SenderState) -> str | None:
    """The queue that a plan would begin with, where that is no question: none, when it is one."""
    entity, rotation = sender.entity, pair.rotation
    is_over = entity.state is HELD_OVER or (entity.state is FAILED_OVER and not entity.trial)
    return sender.queue if is_over and pair.enabled and rotation.is_whole else None


def usual_attempt(pair: Pair, sender: SenderState, timeout_s: float) -> ToBacklog | None:
    """What it would begin with there, when there is time for it."""
    queue, away_s = usual_queue(pair, sender), _away_s(pair, timeout_s)
    return ToBacklog(queue, away_s, False, None) if queue is not None and away_s >= LEAST_S else None


def _away_s(pair: Pair, left_s: float) -> float:
    return min(pair.options.attempt_timeout, left_s - spool_reserve_s(pair))


def first_timeout_s(pair: Pair, timeout_s: float) -> float:
    """What the first attempt on a healthy entity may take."""
    return min(pair.options.attempt_timeout, timeout_s * PRIMARY_SHARE) if pair.has_elsewhere else timeout_s


def spool_reserve_s(pair: Pair) -> float:
    """Of the caller's time, kept for the local disk when there is a spool."""
    return SPOOL_RESERVE_S if pair.has_spool else 0.0


def opening_s(pair: Pair, left_s: float) -> float:
    """What an attempt needs that has to open its connection, also where the share of a short time-out is less.

    Otherwise whoever sends with a time-out of a second would never get a connection to the primary.
    """
    if not pair.has_elsewhere:
        return left_s
    wanted_s = max(left_s - ELSEWHERE_S, min(left_s, 1.0) * OPENING_SHARE)
    return min(pair.options.attempt_timeout, OPENING_S, wanted_s)


def _home(
    pair: Pair, sender: SenderState, call: _Call, *, trial: bool = False, tried: Reply | None = None
) -> Generator[Command, Reply, Receipt | None]:
    """One attempt on the primary, and what follows from it. None: ask for the route again."""
    entity = sender.entity
    timeout_s = min(call.primary_left_s, call.left_s)
    if pair.has_elsewhere:
        timeout_s = min(timeout_s, pair.options.attempt_timeout)
    if timeout_s <= 0:
        if trial:
            return None  # the primary had its share of this call; the backlog has not
        raise call.unsent(call.failure or Failure(Kind.TIMEOUT, "the time-out of the send is over"), Where.PRIMARY)
    started = call.now
    reply = (yield ToPrimary(timeout_s, fresh=call.attempts == 1, trial=trial)) if tried is None else tried
    call.now = reply.now
    if reply.rerouted:
        return None
    failure = reply.failure
    if failure is not None and reply.waited:
        return (yield from _nowhere_else(pair, call, failure, Where.PRIMARY))
    if failure is None:
        pair.accepted(entity, call.now, trial=trial)
        return call.stored(Where.PRIMARY)
    call.failure = failure
    call.primary_left_s -= call.now - started
    call.remember(failure, started)
    reaction = pair.reaction(entity, failure, call.now)
    if failure.kind not in MESSAGE_FAULTS and pair.is_away(entity, call.now):
        return None  # it failed over meanwhile, or this was the trial: to the backlog in this same call
    if reaction is Reaction.RAISE:
        raise call.unsent(failure, Where.PRIMARY)
    if reaction is Reaction.WAIT:
        yield from _wait_busy(call, failure, Where.PRIMARY)
        return None
    if reply.hurried and failure.kind is Kind.TIMEOUT:
        return (yield from _nowhere_else(pair, call, failure, Where.PRIMARY))
    call.attempts += 1
    if call.attempts == 1:
        call.tries_since = started
    if _tries_again(failure, call):
        pause_s = RETRY_PAUSES_S[call.attempts - 1] - (call.now - started)
        if pause_s > 0:
            yield from _pause(call, pause_s)
        return None
    call.attempts = 0
    pair.failed(entity, failure, call.now)
    if not pair.is_away(entity, call.now):
        raise call.unsent(failure, Where.PRIMARY)
    return None


def _tries_again(failure: Failure, call: _Call) -> bool:
    """Quick errors are repeated within about a second and a half; a time-out, or throttling that counts, is not.

    Once they are repeated in any case: the service may have closed the connection while it was idle.
    """
    if failure.kind in (Kind.TIMEOUT, Kind.BUSY) or call.attempts > len(RETRY_PAUSES_S):
        return False
    if call.attempts > 1 and call.now - call.tries_since > LAST_RETRY_S:
        return False
    pause_s = RETRY_PAUSES_S[call.attempts - 1]
    return pause_s < min(call.left_s, call.primary_left_s)


def _away(
    pair: Pair, sender: SenderState, call: _Call, *, tried: Reply | None = None, tried_queue: str = ""
) -> Generator[Command, Reply, Receipt | None]:
    """One backlog queue, with one repetition on a fresh connection; the spool when there is no queue or no time."""
    reserve_s, began = spool_reserve_s(pair), call.now
    if tried is not None:
        call.now = tried.now
    queue, events = pair.rotation.pick(sender.queue, call.now)
    for event in events:
        pair.publish(event)
    if tried is not None and tried.failure is not None and queue != tried_queue:
        # Another send has taken that queue out meanwhile. What it did with this message is still to be known.
        call.remember_away(tried_queue, tried.failure, began)
        tried = None
    if queue is None or (tried is None and call.left_s - reserve_s < LEAST_S):
        text = "no backlog queue is in rotation" if queue is None else "no backlog queue took it in time"
        error, last = None, call.away_failure
        if last is not None:
            text, error = f"{text}, the last one that was asked: {last.text}", last.error
        return (yield from _nowhere_else(pair, call, Failure(Kind.COMMUNICATION, text, error=error), Where.BACKLOG))
    sender.queue = queue
    failure: Failure | None = None
    for fresh in (False, True):
        started = began if tried is not None else call.now
        timeout_s = _away_s(pair, call.deadline - started)
        reply = (yield ToBacklog(queue, timeout_s, fresh, call.first_attempt_at)) if tried is None else tried
        call.now, failure, tried = reply.now, reply.failure, None
        if reply.rerouted:
            return None
        if failure is not None and reply.waited:
            break
        if failure is None:
            for event in pair.rotation.accepted(queue):
                pair.publish(event)
            return call.stored(Where.BACKLOG, queue)
        call.remember_away(queue, failure, started)
        if failure.kind in MESSAGE_FAULTS:
            raise call.unsent(failure, Where.BACKLOG)
        if failure.kind is Kind.BUSY:
            if call.left_s - reserve_s < BUSY_WAIT_S:
                return (yield from _nowhere_else(pair, call, failure, Where.BACKLOG))
            yield from _pause(call, BUSY_WAIT_S)
            return None
        if failure.kind is not Kind.COMMUNICATION or call.left_s <= reserve_s:
            break
    assert failure is not None
    had_too_little = reply.hurried or (pair.has_spool and timeout_s < _enough_s(pair))
    if reply.waited or (failure.kind is Kind.TIMEOUT and had_too_little):
        return (yield from _nowhere_else(pair, call, failure, Where.BACKLOG))
    for event in pair.rotation.failed(queue, failure.text, call.now):
        pair.publish(event)
    if call.left_s <= reserve_s:
        return (yield from _nowhere_else(pair, call, failure, Where.BACKLOG))
    return None


def _enough_s(pair: Pair) -> float:
    """An attempt on a backlog queue that had less, because the spool needs its part, says nothing about the queue: it
    may have had to open its connection. Who forwards the message takes the time to find out."""
    return min(pair.options.attempt_timeout, OPENING_S)


def is_hurried(pair: Pair, timeout_s: float, *, is_open: bool) -> bool:
    """The caller's time leaves an attempt less than it needs, on a connection that is open or has to be opened."""
    return timeout_s < min(LEAST_S if is_open else HURRIED_S, pair.options.attempt_timeout)


def _nowhere_else(pair: Pair, call: _Call, failure: Failure, where: Where) -> Generator[Command, Reply, Receipt]:
    """But the spool, where there is one."""
    if not pair.has_spool:
        raise call.unsent(failure, where)
    return (yield from _to_spool(call))


def _to_spool(call: _Call) -> Generator[Command, Reply, Receipt]:
    reply = yield ToSpool(call.first_attempt_at)
    call.now = reply.now
    if reply.failure is not None:
        raise call.unsent(reply.failure, Where.SPOOL)
    return call.stored(Where.SPOOL)


def _wait_busy(call: _Call, failure: Failure, where: Where) -> Generator[Command, Reply, None]:
    """As long as the service asks; when the caller has not that long, the error at once."""
    if call.left_s < BUSY_WAIT_S:
        raise call.unsent(failure, where)
    yield from _pause(call, BUSY_WAIT_S)


def _pause(call: _Call, seconds: float) -> Generator[Command, Reply, None]:
    reply = yield Pause(seconds)
    call.now = reply.now
