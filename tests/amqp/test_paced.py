"""Large messages of a paced connection: one frame at a time, sessions in turns, and deliveries that are taken back."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.amqp.events import AmqpEvent, SessionFlow
from pairbus.amqp.performatives import Transfer
from pairbus.amqp.pieces import PIECE_MAX
from tests.amqp.pair import Pair


def paced(**server: Any) -> Pair:
    """A pair whose client is paced."""
    pair = Pair(server=server)
    pair.client.paced = True
    return pair


def feed_all(pair: Pair) -> list[AmqpEvent]:
    """Write and deliver one frame after the other, as a socket takes them."""
    events: list[AmqpEvent] = []
    while pair.client.feed(events):
        assert len(pair.client_speaks()) <= 1
        pair.pump()
    return events


def test_sessions_with_large_messages_take_turns() -> None:
    """A message of many megabytes on one session delays another session by one frame, not by the whole message."""
    pair = paced()
    one, _ = pair.sender()
    two, _ = pair.sender(pair.begin(), "other")
    one.send(b"a" * 100_000, b"1")
    two.send(b"b" * 40_000, b"2")
    assert not pair.client.has_output, "nothing is written before the socket asks for it"
    events = feed_all(pair)
    frames = [frame for frame in pair.from_client.frames if isinstance(frame[1], Transfer)]
    assert [channel for channel, _, _ in frames] == [0, 1, 0, 1, 0, 0]
    assert max(len(payload) for _, _, payload in frames) < PIECE_MAX
    assert [delivery.payload[:1] for delivery in pair.deliveries()] == [b"b", b"a"]
    assert events == [SessionFlow(two.session), SessionFlow(one.session)], "each may send again"


def test_session_without_window_leaves_the_ring() -> None:
    """The session comes back with the peer's flow: until then no turn is spent on it."""
    pair = paced(incoming_window=2)
    link, _ = pair.sender()
    link.send(b"x" * 100_000, b"1")
    events: list[AmqpEvent] = []
    assert [pair.client.feed(events) for _ in range(3)] == [True, True, False]
    assert not pair.client.ring and events == []
    pair.pump()
    assert list(pair.client.ring) == [link.session]
    assert feed_all(pair) == [SessionFlow(link.session)]
    assert [len(delivery.payload) for delivery in pair.deliveries()] == [100_000]


def test_messages_of_one_session_stay_in_order() -> None:
    """Also a small one behind a large one: the session stands in the ring once, however much it has to write."""
    pair = paced()
    link, _ = pair.sender()
    for number, size in enumerate((70_000, 5, 40_000)):
        link.send(bytes([number]) * size, bytes([number]))
    assert len(pair.client.ring) == 1
    feed_all(pair)
    assert [(delivery.payload[0], len(delivery.payload)) for delivery in pair.deliveries()] == [
        (0, 70_000),
        (1, 5),
        (2, 40_000),
    ]


def test_detached_link_has_nothing_more_to_write() -> None:
    """The session is still in the ring: the next turn finds nothing, and no frame of the message leaves."""
    pair = paced()
    link, _ = pair.sender()
    link.send(b"x" * 100_000, b"1")
    link.detach()
    pair.pump()
    assert not pair.client.feed([])
    assert pair.deliveries() == [] and pair.client.is_open


@pytest.mark.parametrize("frames_before", [0, 1])
def test_delivery_taken_back_before_its_last_frame_never_arrives(frames_before: int) -> None:
    """A send that times out may still be taken back: its caller knows then that nobody has stored the message."""
    pair = paced()
    link, _ = pair.sender()
    session = link.session
    large = link.send(b"x" * 100_000, b"1")
    whole = link.send(b"whole", b"2")
    last = link.send(b"last", b"3")
    for _ in range(frames_before):
        assert pair.client.feed([])
    pair.pump()
    assert (pair.server.partial_bytes > 0) is bool(frames_before)
    assert session.abort(large) and session.abort(last)
    assert session.sent_unsettled == 1
    feed_all(pair)
    assert [delivery.payload for delivery in pair.deliveries()] == [b"whole"]
    assert pair.server.partial_bytes == 0
    assert not session.abort(whole), "its last frame is written: the peer may have taken it"
    assert session.sent_unsettled == 1
