"""Attach and detach in every order, refusals, names and handles used again, and late frames."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pairbus.amqp.connection import Connection
from pairbus.amqp.events import (
    AmqpEvent,
    ConnectionClosed,
    LinkAttached,
    LinkDetached,
)
from pairbus.amqp.lifecycle import EndpointState
from pairbus.amqp.performatives import (
    ACCEPTED_BYTES,
    Attach,
    Detach,
    Error,
    Source,
    Target,
)
from tests.amqp.pair import Pair, answer_as_server, refuse_links
from tests.amqp.test_endings import kinds, raw

ORDERS = list(itertools.permutations(["client detaches", "server detaches", "client ends", "server closes"]))


@pytest.mark.parametrize("order", ORDERS, ids=["-".join(step.replace(" ", "_") for step in order) for order in ORDERS])
@pytest.mark.parametrize("speaks_at_once", [True, False])
def test_endings_in_any_order_leave_nothing_behind(order: tuple[str, ...], speaks_at_once: bool) -> None:
    """Each step is done if its endpoint is still open; the other end hears of it at once or late."""
    pair = Pair()
    link, far = pair.sender()
    steps: dict[str, Any] = {
        "client detaches": lambda: link.detach() if link.state is EndpointState.OPEN else None,
        "server detaches": lambda: (
            far.detach(Error("amqp:link:detach-forced")) if far.state is EndpointState.OPEN else None
        ),
        "client ends": lambda: link.session.end() if link.session.state is EndpointState.OPEN else None,
        "server closes": lambda: pair.server.close() if pair.server.state is EndpointState.OPEN else None,
    }
    for step in order:
        steps[step]()
        if speaks_at_once:
            pair.pump()
    pair.pump()
    assert "ConnectionFailed" not in kinds(pair.at_client + pair.at_server)
    assert pair.client.state is pair.server.state is EndpointState.CLOSED
    assert pair.client.partial_bytes == pair.server.partial_bytes == 0


@pytest.mark.parametrize("closed", [True, False])
def test_a_detach_is_answered_in_kind(closed: bool) -> None:
    """A non-closing detach answered by a closing one would force the peer to attach again (2.6.6)."""
    pair = Pair()
    link, far = pair.sender()
    link.detach(closed=closed)
    pair.pump()
    assert pair.at_server[-1] == LinkDetached(far, closed, None)
    assert pair.at_client[-1] == LinkDetached(link, closed, None)
    assert link.state is far.state is EndpointState.CLOSED
    assert link.session.links == far.session.links == []


def test_a_refused_link_carries_no_termini_and_its_reason() -> None:
    """Termini in the answer would make the Python sender believe that it is attached."""
    pair = Pair(answer=refuse_links)
    session = pair.begin()
    link = session.new_sender("nowhere")
    link.attach(source=Source("a"), target=Target("b"))
    pair.pump()
    attached, detached = pair.at_client[-2:]
    assert isinstance(attached, LinkAttached) and isinstance(detached, LinkDetached)
    assert attached.attach.source is None and attached.attach.target is None
    assert detached.error == Error("amqp:not-found", "nothing of that name") and detached.closed
    link.detach()
    pair.pump()
    assert session.links == pair.server.sessions[0].links == []


def test_a_bare_refusal_says_nothing_about_the_link() -> None:
    """Azure answers so where a right is missing: settle modes of the peer are not repeated either."""

    def refuse_barely(connection: Connection, event: AmqpEvent) -> None:
        if isinstance(event, LinkAttached):
            event.link.refuse(Error("amqp:unauthorized-access", "no right"), bare=True)
        else:
            answer_as_server(connection, event)

    pair = Pair(answer=refuse_barely)
    link = pair.begin().new_sender("closed")
    link.attach(source=Source("a"), target=Target("b"), snd_settle_mode=1, rcv_settle_mode=1)
    pair.pump()
    attached, detached = pair.at_client[-2:]
    assert isinstance(attached, LinkAttached) and attached.attach == Attach("closed", 0, True)
    assert detached == LinkDetached(link, True, Error("amqp:unauthorized-access", "no right"))


def test_a_second_attach_in_answer_to_a_refusal_is_tolerated() -> None:
    """The Python SDK sends it, with the same name and handle, and its detach behind it."""
    pair = Pair(answer=refuse_links)
    session = pair.begin()
    link = session.new_sender("twice")
    link.attach()
    pair.pump()
    again = raw((session.channel, Attach("twice", link.handle, False, initial_delivery_count=0)))
    farewell = raw((session.channel, Detach(link.handle, closed=True)))
    events = pair.server.receive_data(again + farewell, 1.0)
    assert kinds(events) == ["LinkDetached"]
    assert pair.server.sessions[0].links == [] and not pair.server.is_over


def test_a_name_is_free_again_while_its_old_link_is_still_going() -> None:
    """A refused name may be tried again on another handle; the end of the old link does not end the new one."""
    pair = Pair(answer=refuse_links)
    session = pair.begin()
    old = session.new_sender("name")
    old.attach()
    pair.pump()
    pair.answer = answer_as_server
    attach = Attach("name", 5, False, initial_delivery_count=0)
    (attached,) = pair.server.receive_data(raw((session.channel, attach)), 1.0)
    assert isinstance(attached, LinkAttached)
    attached.link.attach()
    (detached,) = pair.server.receive_data(raw((session.channel, Detach(old.handle, closed=True))), 1.0)
    assert isinstance(detached, LinkDetached) and detached.link is not attached.link
    far = pair.server.sessions[0]
    assert far.links == [attached.link] and attached.link.is_open
    again = Attach("name", 5, False, initial_delivery_count=0)
    assert kinds(pair.server.receive_data(raw((session.channel, again)), 1.0)) == ["ConnectionFailed"]


def test_handles_are_used_again() -> None:
    """Each attach and detach gives its handle back at both ends."""
    pair = Pair(server={"handle_max": 1}, client={"handle_max": 1})
    session = pair.begin()
    for number in range(30):
        one, _ = pair.sender(session, f"s{number}")
        two, _ = pair.receiver(session, f"r{number}")
        assert {one.handle, two.handle} == {0, 1}
        with pytest.raises(Exception, match="no free handle"):
            session.new_sender("third")
        one.detach()
        two.detach()
        pair.pump()
    assert session.links == pair.server.sessions[0].links == []


def test_a_link_given_up_before_it_was_answered_goes_quietly() -> None:
    """The user of the link has turned away: the peer's late attach is no event, the detach ends the matter."""
    pair = Pair()
    session = pair.begin()
    link = session.new_sender("impatient")
    link.attach()
    link.detach()
    pair.pump()
    assert kinds(pair.at_client)[-1] == "LinkDetached" and link.state is EndpointState.CLOSED
    assert "LinkAttached" not in kinds(pair.at_client)
    assert session.links == []


def test_transfers_in_flight_to_a_link_that_goes_are_ignored() -> None:
    """The flows of the link are ignored too; the session stays open."""
    pair = Pair()
    link, far = pair.sender()
    far.detach(Error("amqp:link:detach-forced", "idle"))
    link.send_run([b"a", b"b", b"c"], [b"1", b"2", b"3"])
    link.send(b"m" * 100_000, b"4")
    link.send_flow()
    heard = pair.client_speaks()
    assert heard == [] and pair.server.partial_bytes == 0
    pair.server_speaks()
    link.detach()
    pair.pump()
    assert pair.server.sessions[0].links == [] and pair.sender(link.session, "next")[0].is_open


def test_half_a_message_goes_with_its_link() -> None:
    """Half sent at one end, half received at the other: both forget it."""
    pair = Pair(server={"incoming_window": 2, "max_frame_size": 512})
    link, _ = pair.sender()
    link.send(b"x" * 5000, b"1")
    pair.client_speaks()
    assert pair.server.partial_bytes > 0
    link.detach()
    pair.pump()
    assert pair.server.partial_bytes == 0 and pair.deliveries() == []
    other, _ = pair.sender(link.session, "other")
    other.send(b"whole", b"2")
    pair.pump()
    assert [d.payload for d in pair.deliveries()] == [b"whole"]


def test_deliveries_of_a_link_that_is_gone_are_forgotten() -> None:
    """A late disposition for them causes no event."""
    pair = Pair()
    link, far = pair.sender()
    link.send(b"m", b"1")
    pair.pump()
    link.detach()
    pair.pump()
    assert link.session.sent_unsettled == 0
    far.session.send_disposition(True, 0, 0, True, ACCEPTED_BYTES)
    pair.pump()
    assert "Disposed" not in kinds(pair.at_client)


def test_answer_too_large_for_the_peer_ends_the_connection() -> None:
    """A performative cannot be cut; amqp:frame-size-too-small is what the standard has for it (2.8.15)."""
    pair = Pair(client={"max_frame_size": 512})
    session = pair.begin()
    session.new_sender("n" * 600).attach()
    pair.pump()
    closed = pair.at_client[-1]
    assert isinstance(closed, ConnectionClosed) and closed.error is not None
    assert closed.error.condition == "amqp:frame-size-too-small"


def test_a_link_that_is_closed_takes_no_more_words() -> None:
    """A user may answer an event of a link that both ends have let go of meanwhile."""
    pair = Pair()
    link, far = pair.sender()
    link.detach()
    pair.pump()
    for end in (link, far):
        end.attach()
        end.detach()
        assert end.state is EndpointState.CLOSED
    assert not pair.client.has_output and not pair.server.has_output
