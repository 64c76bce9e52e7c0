"""The first attempt at home, and the usual one away, are made without a plan. What follows is what a plan would do."""

from __future__ import annotations

import pytest

from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.pair import Pair
from pairbus.pairing.policy import Failure, Kind
from pairbus.pairing.sending import (
    Command,
    Receipt,
    Reply,
    SenderState,
    ToBacklog,
    ToPrimary,
    ToSpool,
    Unsent,
    first_timeout_s,
    sending,
    usual_attempt,
    usual_queue,
)

ANSWERS = [
    None,
    *(Failure(kind, kind.value, unknown) for kind in Kind for unknown in (False, True)),
]


def after_the_first_attempt(answer: Failure | None, *, tried: bool) -> tuple[Command | Receipt | str, object]:
    """The next step, and the state of the entity then."""
    pair = Pair(SendAvailabilityPairedNamespaceOptions(failover_interval=0), lambda event: None, lambda count: 0)
    pair.paired_with(["backlog/0"])
    entity = pair.entity("orders", 0.0)
    reply = Reply(1.0, answer)
    plan = sending(pair, SenderState(entity), 60.0, 0.0, tried=reply if tried else None)
    step: Command | Receipt | str
    try:
        step = next(plan)
        if not tried:
            assert step == ToPrimary(first_timeout_s(pair, 60.0), fresh=False, trial=False)
            step = plan.send(reply)
    except StopIteration as end:
        step = end.value
    except Unsent as unsent:
        step = f"{unsent.where} {unsent.failure} {unsent.outcome_unknown}"
    return step, (entity.state, entity.failed_sends, entity.busy_since)


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_an_attempt_before_the_plan_counts_as_the_plans_own(answer: Failure | None) -> None:
    """Both ways to send must agree, or a failure is judged by how busy the client was."""
    assert after_the_first_attempt(answer, tried=True) == after_the_first_attempt(answer, tried=False)


def away(*, queues: int = 2, spool_dir: str | None = None) -> tuple[Pair, SenderState]:
    """A sender that has diverted before."""
    pair = Pair(SendAvailabilityPairedNamespaceOptions(spool_dir=spool_dir), lambda event: None, lambda count: 0)
    pair.paired_with([f"backlog/{number}" for number in range(queues)])
    sender = SenderState(pair.entity("orders", 0.0))
    pair.force_failover("orders", 0.0)
    sender.queue = "backlog/1"
    return pair, sender


def after_the_first_attempt_away(
    answer: Failure | None, timeout_s: float, spool_dir: str | None, *, tried: bool
) -> tuple[Command | Receipt | str, str]:
    pair, sender = away(spool_dir=spool_dir)
    first = usual_attempt(pair, sender, timeout_s)
    assert first is not None and first.queue == "backlog/1"
    queue, reply = first.queue, Reply(1.0, answer)
    plan = sending(pair, sender, timeout_s, 0.0, tried=reply if tried else None, tried_queue=queue if tried else None)
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
    return step, f"{sender.queue} of {pair.rotation}"


@pytest.mark.parametrize("spool_dir", [None, "spool"])
@pytest.mark.parametrize("timeout_s", [60.0, 2.0])
@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_an_attempt_away_before_the_plan_counts_as_the_plans_own(
    answer: Failure | None, timeout_s: float, spool_dir: str | None
) -> None:
    """The same, of a backlog queue."""
    case = (answer, timeout_s, spool_dir)
    assert after_the_first_attempt_away(*case, tried=True) == after_the_first_attempt_away(*case, tried=False)


def test_a_call_whose_time_only_the_spool_can_use_needs_a_plan() -> None:
    pair, sender = away(spool_dir="spool")
    assert usual_attempt(pair, sender, 0.5) is None
    assert isinstance(next(sending(pair, sender, 0.5, 0.0)), ToSpool)


def test_a_queue_that_went_out_meanwhile_is_not_held_against_the_next_one() -> None:
    """Two sends of one sender fail at the same moment: the second must not take a queue out that it never asked."""
    pair, sender = away()
    pair.rotation.failed("backlog/1", "the first of them", 0.5)
    plan = sending(pair, sender, 60.0, 0.0, tried=Reply(1.0, Failure(Kind.TIMEOUT, "late")), tried_queue="backlog/1")
    assert next(plan) == ToBacklog("backlog/0", pair.options.attempt_timeout, False, None)
    assert pair.rotation.has("backlog/0")


def test_only_a_sender_whose_queue_is_no_question_sends_away_without_a_plan() -> None:
    pair, sender = away()
    sender.queue = None
    assert usual_queue(pair, sender) is None
    pair, sender = away()
    pair.rotation.failed("backlog/0", "gone", 0.0)
    assert usual_queue(pair, sender) is None, "a plan looks whether it is back"
    pair, sender = away()
    pair.force_healthy("orders", 1.0)
    assert usual_queue(pair, sender) is None
