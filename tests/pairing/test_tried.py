"""The first attempt is made without a plan. A plan that is told of it goes on as if it were its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.pair import Pair
from pairbus.pairing.policy import Failure, Kind, Silence
from pairbus.pairing.sending import (
    Command,
    Receipt,
    Reply,
    SenderState,
    ToBacklog,
    ToPrimary,
    ToSpool,
    Unsent,
    first_attempt,
    sending,
)

ANSWERS = [
    None,
    *(Failure(kind, kind.value, unknown) for kind in Kind for unknown in (False, True)),
]
TIMES_S = [60.0, 2.0, 0.7]


def home(spool_dir: str | None) -> tuple[Pair, SenderState]:
    options = SendAvailabilityPairedNamespaceOptions(failover_interval=0, spool_dir=spool_dir)
    pair = Pair(options, lambda event: None, lambda count: 0)
    pair.paired_with(["backlog/0", "backlog/1"])
    return pair, SenderState(pair.entity("orders", 0.0))


def away(spool_dir: str | None = None) -> tuple[Pair, SenderState]:
    """Return a sender that has diverted before."""
    pair, sender = home(spool_dir)
    pair.force_failover("orders", 0.0)
    sender.queue = "backlog/1"
    return pair, sender


def next_step(
    pair: Pair, sender: SenderState, timeout_s: float, reply: Reply, *, tried: bool
) -> tuple[Command | Receipt | str, str]:
    """Return the step after the first attempt, and what is known of the entity and the queues then."""
    first = first_attempt(pair, sender, timeout_s)
    assert first is not None
    plan = sending(pair, sender, timeout_s, 0.0, tried=(first, reply) if tried else None)
    step: Command | Receipt | str
    try:
        step = next(plan)
        if not tried:
            assert step == first
            step = plan.send(reply)
    except StopIteration as end:
        step = end.value
    except Unsent as unsent:
        step = f"{unsent.where} {unsent.failure} {unsent.outcome_unknown}"
    entity = sender.entity
    return step, f"{entity.state} {entity.failed_sends} {entity.busy_since} {sender.queue} of {pair.rotation}"


@pytest.mark.parametrize("silence", [None, Silence(0.0, 0.5), Silence(0.5, 0.5)], ids=str)
@pytest.mark.parametrize("spool_dir", [None, "spool"])
@pytest.mark.parametrize("timeout_s", TIMES_S)
@pytest.mark.parametrize("made", [home, away])
@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_an_attempt_before_the_plan_is_the_plans_own(
    answer: Failure | None, made: object, timeout_s: float, spool_dir: str | None, silence: Silence | None
) -> None:
    """The two ways to send must agree, or one failure would be judged in two ways."""
    answer = None if answer is None else replace(answer, silence=silence)
    reply = Reply(min(1.0, timeout_s), answer)
    ways = [
        next_step(*(home if made is home else away)(spool_dir), timeout_s, reply, tried=tried)
        for tried in (True, False)
    ]
    assert ways[0] == ways[1]


@pytest.mark.parametrize("timeout_s", TIMES_S)
def test_a_healthy_entity_begins_at_the_primary(timeout_s: float) -> None:
    pair, sender = home(None)
    first = first_attempt(pair, sender, timeout_s)
    assert isinstance(first, ToPrimary) and not first.fresh and not first.trial


def test_a_call_that_only_the_spool_can_serve_needs_a_plan() -> None:
    """The call has less time than the local disk and a queue need together."""
    pair, sender = away("spool")
    assert first_attempt(pair, sender, 0.5) is None
    assert isinstance(next(sending(pair, sender, 0.5, 0.0)), ToSpool)


def test_a_queue_that_went_out_is_not_held_against_another() -> None:
    """Two sends of one sender fail at the same moment: the second must not take a queue out that it never asked."""
    pair, sender = away()
    first = first_attempt(pair, sender, 60.0)
    assert isinstance(first, ToBacklog)
    pair.rotation.failed("backlog/1", "the first of them", 0.5)
    plan = sending(pair, sender, 60.0, 0.0, tried=(first, Reply(1.0, Failure(Kind.TIMEOUT, "late"))))
    assert next(plan) == ToBacklog("backlog/0", 59.0, 3, 3, False, None)
    assert pair.rotation.has("backlog/0")


def test_a_sender_without_its_queue_needs_a_plan() -> None:
    """The plan picks one, looks whether one is back, or makes the trial."""
    pair, sender = away()
    assert first_attempt(pair, sender, 60.0) == ToBacklog("backlog/1", 60.0, 3, 3, False, None)
    sender.queue = None
    assert first_attempt(pair, sender, 60.0) is None
    pair, sender = away()
    pair.rotation.failed("backlog/0", "gone", 0.0)
    assert first_attempt(pair, sender, 60.0) is None, "a plan checks whether the backlog queue is back"
    pair, sender = home(None)
    pair.failed(sender.entity, Failure(Kind.COMMUNICATION, "lost"), 0.0)
    sender.queue, sender.entity.trial = "backlog/1", True
    assert first_attempt(pair, sender, 60.0) is None, "a plan makes the trial"
    pair, sender = away()
    pair.force_healthy("orders", 1.0)
    assert isinstance(first_attempt(pair, sender, 60.0), ToPrimary)
