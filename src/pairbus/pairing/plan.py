"""The plan of one send, from its call to the place where the message is safe: a generator of commands.

Every send has a plan, and every decision about it is here; the engine and the simulation perform the commands of
`pairing/commands.py` and reply how each ended. For a healthy entity the first command is an attempt on the primary, and
an accepted message ends the plan.

    plan = sending(pair, sender, timeout_s, now)
    command = next(plan)
    while True: command = plan.send(Reply(now, failure))      # StopIteration.value is the Receipt

The plan ends with a `Receipt`, or raises `Unsent`: the caller still owns the messages, or those that were not stored.

Every attempt has two limits. `silence_s` is the longest silence of the peer: a peer that is silent for longer counts as
lost. `timeout_s` is the rest of the caller's time: it ends an attempt on a slow peer, which does not count against the
peer. Whichever limit ended the attempt, the failure tells how long the peer had been silent (`Failure.silence`), and
`_is_inconclusive` judges by that value alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace

from pairbus.pairing.commands import Command, Pause, Plan, Receipt, Reply, ToBacklog, ToPrimary, ToSpool, Unsent, Where
from pairbus.pairing.events import Event
from pairbus.pairing.failover import HEALTHY, SendingEntity
from pairbus.pairing.options import PRIMARY_SHARE
from pairbus.pairing.pair import Pair, Route
from pairbus.pairing.policy import BUSY_WAIT_S, MESSAGE_FAULTS, Failure, Kind, Reaction

RETRY_PAUSES_S = (0.1, 0.4)  # between the starts of attempts that fail quickly: three attempts within about a second
ELSEWHERE_S = 1.0  # for a backlog queue after a slow attempt on the primary: a connection and an answer
PRIMARY_LEAST = 0.75  # of the caller's time, or of its first second: a first connection has to fit into it
QUEUE_SHARE = 0.75  # of the time that is left: a backlog queue that is silent for longer leaves time for another one
LAST_SHARE = 0.84  # of the time that is left, when no other queue is asked: silence is noticed up to a sixth later
CONCLUSIVE_S = 0.5  # with a shorter silence, an attempt without an answer does not count against the peer
LEAST_S = 0.1  # an attempt with less time is not made
SPOOL_RESERVE_S = 0.5  # of the caller's time, kept for the local disk when there is a spool
SPOOL_LEAST_S = 1.5  # for the local disk, also when less of the caller's time is left

IN_PRIMARY = Receipt(Where.PRIMARY)


class SenderState:
    """The memory of one sender between its sends."""

    __slots__ = ("entity", "queue")

    def __init__(self, entity: SendingEntity) -> None:
        self.entity = entity
        self.queue: str | None = None
        "The backlog queue that the sender picked, and keeps while the queue works."


class _Call:
    """The clock and the memory of one send."""

    __slots__ = (
        "attempts",
        "backlog_failure",
        "deadline",
        "failure",
        "first_attempt_at",
        "is_request",
        "now",
        "primary_left_s",
        "unanswered",
    )

    def __init__(self, pair: Pair, timeout_s: float, now: float, *, is_request: bool = False) -> None:
        self.now = now
        self.is_request = is_request
        self.deadline = now + timeout_s
        self.primary_left_s = timeout_s * (PRIMARY_SHARE if pair.has_elsewhere else 1.0)
        self.attempts = 0
        "Attempts on the primary since the last time that the entity was healthy."
        self.first_attempt_at: float | None = None
        "Time of the first attempt that may have stored the message nevertheless, in either namespace."
        self.failure: Failure | None = None
        "The last failure of the primary."
        self.backlog_failure: Failure | None = None
        "The last failure of a backlog queue."
        self.unanswered: str | None = None
        "The first backlog queue that may have stored the message nevertheless."

    @property
    def left_s(self) -> float:
        return self.deadline - self.now

    def remember(self, failure: Failure, started: float) -> None:
        if failure.outcome_unknown and self.first_attempt_at is None:
            self.first_attempt_at = started

    def remember_backlog(self, queue: str, failure: Failure, started: float) -> None:
        self.remember(failure, started)
        self.backlog_failure = failure
        if failure.outcome_unknown and self.unanswered is None:
            self.unanswered = queue

    def stored(self, where: Where, queue: str | None = None) -> Receipt:
        if where is Where.PRIMARY and self.unanswered is None:
            return IN_PRIMARY
        return Receipt(where, queue, self.unanswered)

    def unsent(self, failure: Failure, where: Where) -> Unsent:
        return Unsent(failure, where, outcome_unknown=failure.outcome_unknown or self.first_attempt_at is not None)


def sending(pair: Pair, sender: SenderState, timeout_s: float, now: float, *, behind_spool: bool = False) -> Plan:
    """Plan one send. `behind_spool`: messages of this entity wait in the spool, and this one queues behind them."""
    entity, failure, began = sender.entity, None, now
    if entity.state is HEALTHY and not behind_spool:  # nearly every send ends here: it needs no memory
        now, failure = yield _to_primary(pair, timeout_s, timeout_s * PRIMARY_SHARE)
        if failure is None:
            pair.accepted(entity, now)
            return IN_PRIMARY
    call = _Call(pair, timeout_s, began)
    if behind_spool:
        return (yield from _to_spool(call))
    receipt = None
    if failure is not None:
        receipt = yield from _refused_by_primary(pair, entity, call, Reply(now, failure))
    while receipt is None:
        route = pair.route(entity, call.now, may_try=call.failure is None)
        if route is Route.DIVERTED:
            receipt = yield from _attempt_on_backlog(pair, sender, call)
        else:
            receipt = yield from _attempt_on_primary(pair, entity, call, trial=route is Route.TRIAL)
    return receipt


def requesting(pair: Pair, sender: SenderState, timeout_s: float, now: float) -> Plan:
    """Plan a request that only the primary can answer, such as scheduling: the same failures count, wait or raise.

    Unsent with `Where.BACKLOG` means that the entity is failed over, so that the request cannot be made.
    """
    call = _Call(pair, timeout_s, now, is_request=True)
    receipt = None
    while receipt is None:
        if pair.is_diverted(sender.entity, call.now):
            raise call.unsent(call.failure or Failure(Kind.COMMUNICATION, "the entity is failed over"), Where.BACKLOG)
        receipt = yield from _attempt_on_primary(pair, sender.entity, call)
    return receipt


def spool_reserve_s(pair: Pair) -> float:
    return SPOOL_RESERVE_S if pair.has_spool else 0.0


def _silences_s(pair: Pair, longest_s: float) -> tuple[float, float]:
    """Return the longest silence on a link, and in each step of an opening."""
    return min(pair.options.attempt_timeout, longest_s), min(pair.options.connect_timeout, longest_s)


def _to_queue(
    pair: Pair, queue: str, left_s: float, *, fresh: bool = False, first_attempt_at: float | None = None
) -> ToBacklog:
    """The silence is always shorter than the attempt: otherwise no silent queue would ever be silent for too long.
    Another queue, which may get a second copy of the message, is asked only when the rest of the time is enough for an
    answer."""
    leaves_rest = pair.rotation.has_choice and left_s * (1 - QUEUE_SHARE) >= CONCLUSIVE_S
    longest_s = left_s * (QUEUE_SHARE if leaves_rest else LAST_SHARE)
    return ToBacklog(queue, left_s, *_silences_s(pair, longest_s), fresh, first_attempt_at)


def _to_primary(
    pair: Pair, left_s: float, primary_left_s: float, *, fresh: bool = False, trial: bool = False
) -> ToPrimary:
    """Share the caller's time: silence may take the primary's part, a slow peer all that other places do not need."""
    if not pair.has_elsewhere:
        return ToPrimary(left_s, left_s, left_s, fresh, trial)
    least_s = min(left_s, 1.0) * PRIMARY_LEAST
    timeout_s = max(left_s - ELSEWHERE_S, left_s * PRIMARY_LEAST)
    longest_s = min(max(primary_left_s, least_s), timeout_s * LAST_SHARE)
    return ToPrimary(timeout_s, *_silences_s(pair, longest_s), fresh, trial)


def _is_inconclusive(pair: Pair, failure: Failure) -> bool:
    """Tell whether a failure does not count against the peer: the attempt was given up while the peer was slow, or had
    too little time for a sign of life."""
    silence = failure.silence
    if silence is None:
        return False
    return not silence.is_too_long or silence.lasted_s < min(CONCLUSIVE_S, pair.options.attempt_timeout)


def _attempt_on_primary(
    pair: Pair, entity: SendingEntity, call: _Call, *, trial: bool = False
) -> Generator[Command, Reply, Receipt | None]:
    """Make one attempt on the primary. None: ask for the route again."""
    if call.left_s <= 0 or call.primary_left_s <= 0:
        if trial:
            return None  # the primary has used its share of this call; the backlog has not
        raise call.unsent(call.failure or Failure(Kind.TIMEOUT, "the time-out of the send is over"), Where.PRIMARY)
    reply = yield _to_primary(pair, call.left_s, call.primary_left_s, fresh=call.attempts == 1, trial=trial)
    if reply.failure is None:
        pair.accepted(entity, reply.now, trial=trial)
        return call.stored(Where.PRIMARY)
    return (yield from _refused_by_primary(pair, entity, call, reply))


def _refused_by_primary(
    pair: Pair, entity: SendingEntity, call: _Call, reply: Reply
) -> Generator[Command, Reply, Receipt | None]:
    """Decide what follows when the primary did not accept the message. None: ask for the route again."""
    started, call.now, failure = call.now, *reply
    assert failure is not None
    call.failure = failure
    call.primary_left_s -= call.now - started
    call.remember(failure, started)
    reaction = pair.reaction(entity, failure, call.now)
    if failure.kind not in MESSAGE_FAULTS and pair.is_diverted(entity, call.now):
        return None  # failed over meanwhile, or this was the trial: this same call goes on to the backlog
    if reaction is Reaction.RAISE:
        raise call.unsent(failure, Where.PRIMARY)
    if reaction is Reaction.WAIT:
        yield from _wait_busy(call, failure, Where.PRIMARY)
        return None
    if _is_inconclusive(pair, failure):
        return (yield from _nowhere_else(pair, call, failure, Where.PRIMARY))
    call.attempts += 1
    if _tries_again(failure, call):
        pause_s = RETRY_PAUSES_S[call.attempts - 1] - (call.now - started)
        if pause_s > 0:
            yield from _pause(call, pause_s)
        return None
    call.attempts = 0
    pair.failed(entity, failure, call.now)
    if pair.is_diverted(entity, call.now):
        return None
    if pair.is_stranded(entity) and not call.is_request:
        text = f"the secondary was lost, and the primary does not take it either: {failure.text}"
        raise call.unsent(replace(failure, text=text), Where.BACKLOG)
    raise call.unsent(failure, Where.PRIMARY)


def _tries_again(failure: Failure, call: _Call) -> bool:
    """Tell whether an attempt is repeated before its failure counts: three attempts in all, none after a time-out."""
    if failure.kind in (Kind.TIMEOUT, Kind.BUSY) or call.attempts > len(RETRY_PAUSES_S):
        return False
    return RETRY_PAUSES_S[call.attempts - 1] < min(call.left_s, call.primary_left_s)


def _attempt_on_backlog(pair: Pair, sender: SenderState, call: _Call) -> Generator[Command, Reply, Receipt | None]:
    """Try one backlog queue, a second time on a fresh connection; the spool when there is no queue or no time."""
    queue, events = pair.rotation.pick(sender.queue, call.now)
    _publish(pair, events)
    reserve_s = spool_reserve_s(pair)
    if queue is None or call.left_s - reserve_s < LEAST_S:
        return (yield from _nowhere_else(pair, call, _no_queue(call, queue), Where.BACKLOG))
    sender.queue = queue
    for fresh in (False, True):
        started = call.now
        attempt = _to_queue(pair, queue, call.left_s - reserve_s, fresh=fresh, first_attempt_at=call.first_attempt_at)
        reply = yield attempt
        call.now, failure = reply
        if failure is None:
            _publish(pair, pair.rotation.accepted(queue))
            return call.stored(Where.BACKLOG, queue)
        call.remember_backlog(queue, failure, started)
        if failure.kind in MESSAGE_FAULTS:
            raise call.unsent(failure, Where.BACKLOG)
        if not pair.rotation.has(queue):
            return None  # another send took it out of rotation meanwhile
        if failure.kind is not Kind.COMMUNICATION or call.left_s - reserve_s < LEAST_S:
            break
    return (yield from _refused_by_backlog(pair, sender, call, attempt, reply))


def _refused_by_backlog(
    pair: Pair, sender: SenderState, call: _Call, attempt: ToBacklog, reply: Reply
) -> Generator[Command, Reply, Receipt | None]:
    """Decide what follows when a backlog queue did not accept the message. None: ask for the route again."""
    failure, reserve_s = reply.failure, spool_reserve_s(pair)
    assert failure is not None
    if failure.kind is Kind.BUSY:
        if call.left_s - reserve_s < BUSY_WAIT_S:
            return (yield from _nowhere_else(pair, call, failure, Where.BACKLOG))
        yield from _pause(call, BUSY_WAIT_S)
        return None
    if _is_inconclusive(pair, failure):
        return (yield from _nowhere_else(pair, call, failure, Where.BACKLOG))
    silence, enough_s = failure.silence, pair.options.attempt_timeout
    leaves_rest = True
    if silence is not None and attempt.silence_s < enough_s:
        events = pair.rotation.fell_silent(attempt.queue, silence.lasted_s, enough_s, failure.text, call.now)
        other = pair.rotation.another(attempt.queue)
        sender.queue = other or attempt.queue
        leaves_rest = other is not None and attempt.silence_s <= attempt.timeout_s * QUEUE_SHARE
    else:
        events = pair.rotation.failed(attempt.queue, failure.text, call.now)
    _publish(pair, events)
    if call.left_s <= reserve_s or not leaves_rest:
        return (yield from _nowhere_else(pair, call, failure, Where.BACKLOG))
    return None


def _publish(pair: Pair, events: Iterable[Event]) -> None:
    for event in events:
        pair.publish(event)


def _no_queue(call: _Call, queue: str | None) -> Failure:
    text = "no backlog queue is in rotation" if queue is None else "no backlog queue took it in time"
    last = call.backlog_failure
    if last is None:
        return Failure(Kind.COMMUNICATION, text)
    return Failure(Kind.COMMUNICATION, f"{text}, the last one that was asked: {last.text}", error=last.error)


def _nowhere_else(pair: Pair, call: _Call, failure: Failure, where: Where) -> Generator[Command, Reply, Receipt]:
    """Try the spool, if there is one and this is a send; raise otherwise."""
    if not pair.has_spool or call.is_request:
        raise call.unsent(failure, where)
    return (yield from _to_spool(call))


def _to_spool(call: _Call) -> Generator[Command, Reply, Receipt]:
    reply = yield ToSpool(max(call.left_s, SPOOL_LEAST_S), call.first_attempt_at)
    call.now = reply.now
    if reply.failure is not None:
        raise call.unsent(reply.failure, Where.SPOOL)
    return call.stored(Where.SPOOL)


def _wait_busy(call: _Call, failure: Failure, where: Where) -> Generator[Command, Reply, None]:
    """Wait as long as the service asks; raise at once when the caller has less time."""
    if call.left_s < BUSY_WAIT_S:
        raise call.unsent(failure, where)
    yield from _pause(call, BUSY_WAIT_S)


def _pause(call: _Call, seconds: float) -> Generator[Command, Reply, None]:
    reply = yield Pause(seconds)
    call.now = reply.now
