"""All states × all steps of the one table that opens and closes connections, sessions and links."""

from __future__ import annotations

import itertools

import pytest

from pairbus.amqp.errors import ILLEGAL_STATE, ProtocolError
from pairbus.amqp.lifecycle import TRANSITIONS, EndpointState, Step, after

# Frames that each end may still send, by the diagrams of AMQP 2.4.6, 2.5.5 and 2.6.3 and not by the table under test:
# (have we opened, has the peer opened, have we closed, has the peer closed).
SAID = {
    EndpointState.FRESH: (False, False, False, False),
    EndpointState.OPENING: (True, False, False, False),
    EndpointState.OFFERED: (False, True, False, False),
    EndpointState.OPEN: (True, True, False, False),
    EndpointState.WITHDRAWN: (False, True, False, True),
    EndpointState.CLOSE_ASKED: (True, True, False, True),
}


@pytest.mark.parametrize(("state", "step"), list(itertools.product(EndpointState, Step)))
def test_every_step_in_every_state_leads_on_or_is_an_error(state: EndpointState, step: Step) -> None:
    """An absent row is the fault of the end that made the step: ProtocolError for the peer, AssertionError for us."""
    if (state, step) in TRANSITIONS:
        assert after(state, step, "x") is TRANSITIONS[state, step]
    elif step in (Step.GOT_OPEN, Step.GOT_CLOSE):
        with pytest.raises(ProtocolError) as caught:
            after(state, step, "link x")
        assert caught.value.condition == ILLEGAL_STATE and "link x" in caught.value.description
    else:
        with pytest.raises(AssertionError, match="link x"):
            after(state, step, "link x")


@pytest.mark.parametrize(("state", "step"), list(itertools.product(SAID, Step)))
def test_the_table_lets_each_end_speak_once_and_in_order(state: EndpointState, step: Step) -> None:
    """Each end opens once, and closes once after its own open; only a peer that refuses closes without an open."""
    we_opened, peer_opened, we_closed, peer_closed = SAID[state]
    allowed = {
        Step.SENT_OPEN: not we_opened,
        Step.GOT_OPEN: not peer_opened,
        Step.SENT_CLOSE: we_opened and not we_closed,
        Step.GOT_CLOSE: not peer_closed and (peer_opened or we_opened),
    }[step]
    assert ((state, step) in TRANSITIONS) is allowed


def test_every_state_is_reached_and_all_but_closed_are_left() -> None:
    """A state that cannot be left would hold its handle for ever."""
    reached, left = set(TRANSITIONS.values()), {state for state, _ in TRANSITIONS}
    assert reached | {EndpointState.FRESH} == set(EndpointState)
    assert left == set(EndpointState) - {EndpointState.CLOSED}
