"""Opening and ending of connections and sessions, peers in a hurry, and late frames."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import (
    AmqpEvent,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    SessionBegun,
    SessionEnded,
)
from pairbus.amqp.frames import AMQP_HEADER
from pairbus.amqp.lifecycle import EndpointState
from pairbus.amqp.performatives import (
    ACCEPTED_BYTES,
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    End,
    Error,
    Flow,
    Open,
    Source,
    Target,
)
from pairbus.amqp.sasl import SaslClient, SaslServer
from tests.amqp.pair import Pair, StrictReader, answer_as_server, answer_nothing, refuse_links


def kinds(events: list[AmqpEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def said(reader: StrictReader, kind: type[Any]) -> list[Any]:
    return [performative for _, performative, _ in reader.frames if isinstance(performative, kind)]


# ── connection ──


def test_a_client_may_say_everything_before_the_server_has_said_anything() -> None:
    """Open, begin, attach and credit wait until the headers are exchanged, then leave in order."""
    pair = Pair()
    pair.client.open()
    session = pair.client.new_session()
    session.begin()
    link = session.new_receiver("r")
    link.attach(source=Source("q"), target=Target("here"))
    link.grant(3)
    pair.pump()
    assert [state.is_open for state in (pair.client, pair.server, link)] == [True, True, True]
    assert pair.far_end(session, "r").credit == 3


@pytest.mark.parametrize("with_open", [False, True])
def test_a_client_that_skips_sasl_is_served(with_open: bool) -> None:
    """Tokens decide, not SASL; a header of AMQP at once is enough."""
    client, server = Connection(ConnectionSettings("c"), None), Connection(ConnectionSettings("s"), SaslServer())
    if with_open:
        client.open()
    for _ in range(3):
        for event in server.receive_data(client.data_to_send(), 1.0):
            answer_as_server(server, event)
        client.receive_data(server.data_to_send(), 1.0)
    assert client.is_open is server.is_open is with_open


def test_a_client_that_gives_up_before_the_handshake_still_parts_politely() -> None:
    """Open and close wait together, so that the peer hears a whole conversation."""
    pair = Pair()
    pair.client.open()
    pair.client.close()
    pair.pump()
    assert kinds(pair.at_server) == ["ConnectionOpened", "ConnectionClosed"]
    assert kinds(pair.at_client) == ["ConnectionClosed"] and pair.client.is_over


@pytest.mark.parametrize("closer", ["client", "server", "both"])
def test_whoever_closes_both_ends_hear_it_once(closer: str) -> None:
    """A close is answered by the core; two that cross answer each other."""
    pair = Pair()
    link, _ = pair.sender()
    if closer in ("client", "both"):
        pair.client.close()
    if closer in ("server", "both"):
        pair.server.close(Error("amqp:connection:forced", "maintenance"))
    pair.pump()
    assert pair.client.state is pair.server.state is EndpointState.CLOSED
    assert pair.client.is_over and pair.server.is_over
    for events in (pair.at_client, pair.at_server):
        assert kinds(events).count("ConnectionClosed") == 1 and kinds(events)[-1] == "ConnectionClosed"
    assert not link.is_open and not link.sendable


def test_a_server_that_refuses_the_connection_opens_and_closes_with_its_reason() -> None:
    """An open must precede the close (2.4.3)."""
    pair = Pair(answer=answer_nothing)
    pair.client.open()
    pair.pump()
    pair.server.open()
    pair.server.close(Error("amqp:not-allowed", "too many"))
    pair.pump()
    assert kinds(pair.at_client) == ["ConnectionOpened", "ConnectionClosed"]
    closed = pair.at_client[-1]
    assert isinstance(closed, ConnectionClosed) and closed.error == Error("amqp:not-allowed", "too many")


def test_words_behind_a_close_are_not_heard() -> None:
    """Frames after the close reach neither the closed core nor its user."""
    pair = Pair()
    pair.sender()
    pair.client.close()
    data = pair.client.data_to_send() + bytes.fromhex("0000002202000001005311c0150840437000010000700001000070ffffffff")
    assert kinds(pair.server.receive_data(data, 1.0)) == ["ConnectionClosed"]
    assert pair.server.receive_data(b"whatever", 2.0) == []


def test_a_connection_that_is_over_takes_no_more_words() -> None:
    """A user who answers an old event does no harm."""
    pair = Pair()
    pair.begin()
    pair.client.close()
    pair.pump()
    pair.client.open()
    pair.client.close(Error("amqp:internal-error", "late"))
    assert not pair.client.has_output and pair.client.state is EndpointState.CLOSED


def test_a_peer_that_breaks_the_protocol_after_our_close_is_not_told() -> None:
    """A second close would be a breach of our own; the user hears of the failure."""
    pair = Pair()
    pair.begin()
    pair.client.close()
    pair.client.data_to_send()
    assert kinds(pair.client.receive_data(b"\xff" * 8, 1.0)) == ["ConnectionFailed"]
    assert not pair.client.has_output and pair.client.is_over


# ── what a peer does in one breath ──


def raw(*frames: tuple[int, Composite]) -> bytes:
    out = b""
    for channel, performative in frames:
        body = performative.encode()
        out += (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + body
    return out


OPEN = (0, Open("hasty"))
BEGIN = (0, Begin(None, 0, 100, 100))
ATTACH = (0, Attach("l", 0, False, source=Source("a"), target=Target("b"), initial_delivery_count=0))
BREATHS = {
    "open and close": [OPEN, (0, Close())],
    "open, begin and close": [OPEN, BEGIN, (0, Close())],
    "a session begun and ended": [OPEN, BEGIN, (0, End())],
    "a session begun, ended and begun again": [OPEN, BEGIN, (0, End()), BEGIN],
    "a link attached and detached": [OPEN, BEGIN, ATTACH, (0, Detach(0, closed=True))],
    "a link attached, detached and attached again": [OPEN, BEGIN, ATTACH, (0, Detach(0, closed=True)), ATTACH],
    "a link and the end of its session": [OPEN, BEGIN, ATTACH, (0, End())],
    "all of it": [OPEN, BEGIN, ATTACH, (0, Detach(0, closed=True)), (0, End()), (0, Close())],
    "a flow that wants an echo": [OPEN, BEGIN, (0, Flow(None, 9, 0, 9, echo=True))],
    "an attach, a flow that wants an echo": [OPEN, BEGIN, ATTACH, (0, Flow(None, 9, 0, 9, 0, 0, 5, echo=True))],
}


@pytest.mark.parametrize("frames", BREATHS.values(), ids=BREATHS.keys())
@pytest.mark.parametrize("answer", [answer_as_server, refuse_links])
def test_a_peer_that_leaves_before_it_is_answered_does_no_harm(frames: list[Any], answer: Any) -> None:
    """The user hears of the opening when all is over already. The output of the server is still in order."""
    server, reader = Connection(ConnectionSettings("s"), SaslServer()), StrictReader()
    events = server.receive_data(AMQP_HEADER + raw(*frames), 1.0)
    assert "ConnectionFailed" not in kinds(events)
    for event in events:
        answer(server, event)
    reader.read(server.data_to_send())
    assert len(said(reader, Open)) == 1
    assert len(said(reader, Attach)) >= len(said(reader, Detach))
    if any(isinstance(p, Close) for _, p in frames):
        assert len(said(reader, Close)) == 1 and server.is_over
    for session in server.sessions:
        assert session.state in (EndpointState.OPEN, EndpointState.CLOSED)


# ── sessions ──


def test_a_session_that_ends_takes_its_links_with_it() -> None:
    """No detach is owed; frames that the user sends afterwards on its links are dropped."""
    pair = Pair()
    link, far = pair.sender()
    link.send(b"m", b"1")
    pair.pump()
    link.session.end()
    pair.pump()
    assert kinds(pair.at_server)[-1] == kinds(pair.at_client)[-1] == "SessionEnded"
    assert not far.is_open and not link.is_open and not link.sendable
    assert [ended.session.links for ended in pair.at_server if isinstance(ended, SessionEnded)] == [[far]]
    far.settle(0, 0, ACCEPTED_BYTES, 1)
    far.grant(5)
    far.detach()
    far.session.end()
    far.session.begin()
    link.send(b"late", b"2")
    assert not pair.server.has_output and not pair.client.has_output
    assert pair.server.sessions == pair.client.sessions == []


def test_frames_in_flight_to_a_session_that_ends_are_ignored() -> None:
    """The peer may not have heard our end yet; that is no error of its."""
    pair = Pair()
    link, far = pair.sender()
    far.session.end(Error("amqp:internal-error", "no more"))
    link.send(b"m", b"1")
    link.session.send_flow(echo=True)
    link.session.new_receiver("late").attach()
    link.detach()
    heard = pair.client_speaks()
    assert heard == []
    pair.pump()
    ended = pair.at_client[-1]
    assert isinstance(ended, SessionEnded) and ended.error == Error("amqp:internal-error", "no more")
    assert pair.client.is_open and pair.server.sessions == pair.client.sessions == []


def test_ends_that_cross_meet() -> None:
    """The two ends hear one SessionEnded each, and the connection lives on."""
    pair = Pair()
    session = pair.begin()
    pair.server.sessions[0].end()
    session.end()
    pair.pump()
    assert kinds(pair.at_client).count("SessionEnded") == kinds(pair.at_server).count("SessionEnded") == 1
    assert pair.begin().state is EndpointState.OPEN


def test_channels_are_used_again() -> None:
    """The JavaScript SDK opens a session for each link; a long life must not run out of channels."""
    pair = Pair(server={"channel_max": 3}, client={"channel_max": 3})
    for _ in range(20):
        sessions = [pair.begin() for _ in range(4)]
        assert sorted(session.channel for session in sessions) == [0, 1, 2, 3]
        for session in sessions:
            session.end()
        pair.pump()
    assert pair.server.sessions == []


def test_more_channels_than_agreed_are_refused_at_home() -> None:
    """Our own user hears it before the peer does."""
    pair = Pair(server={"channel_max": 1})
    pair.begin()
    pair.begin()
    with pytest.raises(Exception, match="channels are in use"):
        pair.client.new_session()


def test_a_server_answers_on_a_channel_that_the_client_can_take() -> None:
    """An end's channel-max is the highest number that it can handle; ours may differ from the peer's."""
    server, reader = Connection(ConnectionSettings("s"), SaslServer()), StrictReader()
    data = AMQP_HEADER + raw((0, Open("small", channel_max=2)), (9, Begin(None, 0, 10, 10)))
    for event in server.receive_data(data, 1.0):
        answer_as_server(server, event)
    reader.read(server.data_to_send())
    (channel, begin, _) = reader.frames[-1]
    assert isinstance(begin, Begin) and begin.remote_channel == 9 and channel <= 2


def test_a_long_reason_is_cut_to_what_every_peer_can_take() -> None:
    """512 bytes are all that a peer must accept before it has said more."""
    pair = Pair(client={"max_frame_size": 512})
    pair.begin()
    pair.server.close(Error("amqp:internal-error", "é" * 5000))
    pair.pump()
    closed = pair.at_client[-1]
    assert isinstance(closed, ConnectionClosed) and closed.error == Error("amqp:internal-error", "é" * 80)


def test_mistakes_of_our_own_user_are_asserted() -> None:
    """Mistakes in our own calls are found by the first test that makes them, not by a peer."""
    pair = Pair()
    link, _ = pair.sender()
    for mistake in (pair.client.open, link.session.begin, link.attach):
        with pytest.raises(AssertionError):
            mistake()
    link.detach()
    with pytest.raises(AssertionError):
        link.detach()
    with pytest.raises(AssertionError):
        link.send(b"", b"")


def test_sasl_that_fails_is_told_to_both_ends() -> None:
    """The server says so and hangs up; the client's user hears the condition."""
    for client_sasl, server_sasl in (
        (SaslClient("PLAIN", b"\x00u\x00p"), SaslServer(check=lambda mechanism, response: False)),
        (SaslClient("SCRAM-SHA-1"), SaslServer()),
    ):
        client, server = (
            Connection(ConnectionSettings("c"), client_sasl),
            Connection(ConnectionSettings("s"), server_sasl),
        )
        client.open()
        heard: list[AmqpEvent] = []
        for _ in range(4):
            server.receive_data(client.data_to_send(), 1.0)
            heard += client.receive_data(server.data_to_send(), 1.0)
        (failed,) = heard
        assert isinstance(failed, ConnectionFailed) and failed.error.condition == "amqp:unauthorized-access"
        assert client.is_over


def test_objects_name_themselves() -> None:
    """The texts are for a person who reads a log at night."""
    pair = Pair()
    link, far = pair.sender()
    link.send(b"m", b"1")
    pair.pump()
    assert repr(link) == "<SenderLink to OPEN credit=99>" and repr(far) == "<ReceiverLink to OPEN credit=99>"
    assert repr(link.session) == "<Session 0 OPEN links=1 unsettled=1>"
    assert repr(pair.server) == "<Connection server OPEN sessions=1>"
    assert repr(pair.deliveries()[0]) == "<Delivery 0 on to 1 B>"
    assert isinstance(pair.at_server[0], ConnectionOpened) and isinstance(pair.at_server[1], SessionBegun)
