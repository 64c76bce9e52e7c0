"""The first attempt on a healthy entity is made without a plan. What follows is what a plan would have done."""

from __future__ import annotations

import pytest

from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.pair import Pair
from pairbus.pairing.policy import Failure, Kind
from pairbus.pairing.sending import Command, Receipt, Reply, SenderState, ToPrimary, Unsent, first_timeout_s, sending

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
