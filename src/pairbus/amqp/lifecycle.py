"""States of connections, sessions and links, from open to close: one table for all (AMQP 2.4.6, 2.5.5, 2.6.3).

`open` stands for open, begin or attach; `close` for close, end or detach. Law: only this table changes a state, and a
row that is not here is an error: the peer's when it arrived (ProtocolError), ours when we sent it (AssertionError).

A CLOSED endpoint sends no more frames: `open`, `begin`, `attach`, `end` and `detach` on it do nothing. A peer may open
and close at once, and then the user is told of the opening when the endpoint is already gone.
"""

from __future__ import annotations

from enum import Enum, auto

from pairbus.amqp.errors import ILLEGAL_STATE, ProtocolError


class EndpointState(Enum):
    FRESH = auto()
    OPENING = auto()
    "Our side sent open, the peer did not."
    OFFERED = auto()
    "The peer sent open, our side did not."
    OPEN = auto()
    CLOSING = auto()
    "Our side sent close; frames that arrive before the peer's close are ignored."
    CLOSE_ASKED = auto()
    "The peer sent close, our side did not."
    WITHDRAWN = auto()
    "The peer sent open and close before we answered either."
    CLOSED = auto()


class Step(Enum):
    SENT_OPEN = auto()
    GOT_OPEN = auto()
    SENT_CLOSE = auto()
    GOT_CLOSE = auto()


TRANSITIONS = {
    (EndpointState.FRESH, Step.SENT_OPEN): EndpointState.OPENING,
    (EndpointState.FRESH, Step.GOT_OPEN): EndpointState.OFFERED,
    (EndpointState.OPENING, Step.GOT_OPEN): EndpointState.OPEN,
    (EndpointState.OPENING, Step.SENT_CLOSE): EndpointState.CLOSING,  # giving up before the peer answered
    (EndpointState.OPENING, Step.GOT_CLOSE): EndpointState.CLOSE_ASKED,  # a refusal without an open before it
    (EndpointState.OFFERED, Step.SENT_OPEN): EndpointState.OPEN,
    (EndpointState.OFFERED, Step.GOT_CLOSE): EndpointState.WITHDRAWN,
    (EndpointState.WITHDRAWN, Step.SENT_OPEN): EndpointState.CLOSE_ASKED,
    (EndpointState.OPEN, Step.SENT_CLOSE): EndpointState.CLOSING,
    (EndpointState.OPEN, Step.GOT_CLOSE): EndpointState.CLOSE_ASKED,
    (EndpointState.CLOSING, Step.GOT_OPEN): EndpointState.CLOSING,
    (EndpointState.CLOSING, Step.GOT_CLOSE): EndpointState.CLOSED,
    (EndpointState.CLOSE_ASKED, Step.SENT_CLOSE): EndpointState.CLOSED,
}


def after(state: EndpointState, step: Step, what: str) -> EndpointState:
    """Return the next state; `what` names the endpoint in the error."""
    following = TRANSITIONS.get((state, step))
    if following is not None:
        return following
    if step in (Step.SENT_OPEN, Step.SENT_CLOSE):
        raise AssertionError(f"{what}: {step.name} in state {state.name}")
    raise ProtocolError(ILLEGAL_STATE, f"{what}: {step.name} in state {state.name}")
