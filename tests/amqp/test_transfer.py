"""Messages between a client object and a server object: frames, credit, drain and windows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.events import (
    AmqpEvent,
    Delivery,
    DeliveryAborted,
    LinkDrained,
    LinkFlow,
    SessionFlow,
)
from pairbus.amqp.lifecycle import EndpointState
from pairbus.amqp.message import BATCH_FORMAT, Message, encode_batch
from pairbus.amqp.performatives import ACCEPTED_BYTES, Flow, Released, Transfer
from tests.amqp.pair import Pair, answer_nothing
from tests.amqp.test_endings import raw


def of_kind(events: list[AmqpEvent], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("size", [0, 1, 440, 441, 512, 4000, 100_000])
@pytest.mark.parametrize("max_frame_size", [512, 513, 4096, 65_536])
def test_a_message_of_any_size_arrives_whole_in_frames_of_any_size(size: int, max_frame_size: int) -> None:
    """The strict reader of the pair asserts that no frame is larger than the receiver allowed."""
    pair = Pair(server={"max_frame_size": max_frame_size})
    link, _ = pair.sender()
    payload = bytes(range(256)) * (size // 256 + 1)
    link.send(payload[:size], b"t" * 32, message_format=5)
    pair.pump()
    (delivery,) = pair.deliveries()
    assert (delivery.payload, delivery.tag, delivery.message_format) == (payload[:size], b"t" * 32, 5)
    assert not delivery.settled and not delivery.too_large


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=12), st.integers(512, 2000), st.integers(1, 4))
def test_messages_arrive_once_and_in_order_whatever_the_windows(sizes: list[int], frame: int, window: int) -> None:
    """Windows of a few frames, refreshed by the receiver, hold a sender back but lose and repeat nothing."""
    pair = Pair(server={"max_frame_size": frame, "incoming_window": window})
    link, _ = pair.sender()
    sent = []
    for number, size in enumerate(sizes):
        while not link.sendable:
            pair.pump()
        payload = number.to_bytes(2, "big") * (size // 2)
        sent.append(payload)
        link.send(payload, b"%d" % number)
    pair.pump()
    assert [delivery.payload for delivery in pair.deliveries()] == sent


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=12), st.integers(512, 4000), st.integers(1, 20))
def test_run_arrives_like_messages_sent_one_by_one(sizes: list[int], frame: int, window: int) -> None:
    """The run fits into frames and window, or a part of it waits; ids go on after the highest one."""
    pair = Pair(server={"max_frame_size": frame, "incoming_window": window})
    link, _ = pair.sender()
    first = link.session._next_delivery_id = pair.from_client._next_delivery_id[link.session.channel] = 0xFFFFFFFC
    payloads = [number.to_bytes(2, "big") * (size // 2) for number, size in enumerate(sizes)]
    link.send_run(payloads, [b"%02d" % number for number in range(len(sizes))])
    pair.pump()
    found = [(delivery.payload, delivery.tag, delivery.delivery_id) for delivery in pair.deliveries()]
    assert found == [(each, b"%02d" % n, (first + n) & 0xFFFFFFFF) for n, each in enumerate(payloads)]
    assert link.session.sent_unsettled == len(sizes)


def test_a_shut_window_holds_frames_back_until_a_flow_opens_it() -> None:
    """Frames beyond the window wait, the link is not sendable meanwhile, and SessionFlow tells when it is again."""
    pair = Pair(server={"incoming_window": 2, "max_frame_size": 512})
    link, far = pair.sender()
    link.send(b"x" * 3000, b"1")
    assert not link.sendable and not link.session.window_open
    heard = pair.client_speaks()
    assert not of_kind(heard, Delivery)
    pair.pump()
    assert len(pair.deliveries()) == 1
    assert of_kind(pair.at_client, SessionFlow) and link.sendable
    assert far.session.connection.partial_bytes == 0


def test_a_window_of_four_billion_is_open() -> None:
    """Some peers announce the largest number there is; it must not be read as a negative one."""
    pair = Pair()
    link, far = pair.receiver()
    for window in (0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        link.session.send_performative(Flow(0, window, 0, 0))
        pair.pump()
        assert far.session.window_open


def test_credit_of_four_billion_is_credit() -> None:
    """The same for link credit, also after deliveries that the receiver has not counted yet."""
    pair = Pair()
    link, far = pair.receiver()
    for credit in (0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        link.grant(credit)
        pair.pump()
        assert far.credit == credit and far.sendable
    far.send(b"", b"1")
    link.grant(10)  # granted before the client has read the delivery
    pair.client_speaks()
    assert far.credit == 9


def test_credit_is_spent_and_a_release_does_not_give_it_back() -> None:
    """Credit counts deliveries that were sent, with any outcome (2.6.7)."""
    pair = Pair()
    link, far = pair.receiver()
    link.grant(2)
    pair.pump()
    for tag in (b"1", b"2"):
        assert far.sendable
        far.send(b"m", tag)
    assert not far.sendable
    pair.pump()
    first = pair.deliveries(pair.at_client)[0]
    link.settle(first.delivery_id, first.delivery_id, Released().encode(), 1)
    pair.pump()
    assert not far.sendable
    link.grant(1)
    pair.pump()
    assert far.sendable and far.credit == 1


def test_credit_lowered_below_what_is_on_its_way_is_none() -> None:
    """A receiver that takes credit back while deliveries are in flight stops the sender at once."""
    pair = Pair()
    link, far = pair.receiver()
    link.grant(10)
    pair.pump()
    for number in range(5):
        far.send(b"m", b"%d" % number)
    link.grant(3)  # the peer counts this credit from before the five deliveries
    pair.client_speaks()
    assert far.credit == 0 and not far.sendable


def test_peer_that_counts_more_transfers_than_were_sent_is_believed() -> None:
    """The peer's numbers are wrong, but its window and its credit are all that we can go by."""
    pair = Pair()
    link, far = pair.receiver()
    link.session.send_performative(Flow(5, 8, 0, 8, link.handle, delivery_count=5, link_credit=3))
    pair.pump()
    assert far.session._remote_window == 8 and far.credit == 3


def test_kept_credit_is_topped_up_at_half() -> None:
    """A long stream of messages needs no grants by hand, and not one flow per message."""
    pair = Pair()
    link, far = pair.sender()
    far.keep_credit(10)
    pair.pump()
    flows = 0
    for number in range(100):
        assert link.sendable
        link.send(b"m", b"%d" % number)
        pair.pump()
    flows = len([f for _, f, _ in pair.from_server.frames if isinstance(f, Flow)])
    assert 15 <= flows <= 25


def test_a_drain_is_answered_with_the_count_moved_and_no_credit() -> None:
    """The SDK for JavaScript re-attaches after every receive whose drain is not answered so."""
    pair = Pair()
    link, far = pair.receiver()
    link.grant(10, drain=True)
    pair.pump()
    assert far.drain and of_kind(pair.at_server, LinkFlow)
    far.send(b"m", b"1")
    far.drained()
    pair.pump()
    assert of_kind(pair.at_client, LinkDrained) == [LinkDrained(link)]
    assert (link.credit, link.drain, link.delivery_count, far.delivery_count) == (0, False, 10, 10)
    answer = [f for _, f, _ in pair.from_server.frames if isinstance(f, Flow)][-1]
    assert (answer.delivery_count, answer.link_credit, answer.drain) == (10, 0, True)


def test_a_drain_is_over_when_no_credit_is_left() -> None:
    """A sender may say on the way how far it is; a receiver that took that for the end would miss the rest."""
    pair = Pair()
    link, far = pair.receiver()
    link.grant(5, drain=True)
    pair.pump()

    def told(delivery_count: int, credit: int) -> list[AmqpEvent]:
        flow = Flow(0, 100, 0, 100, far.handle, delivery_count, credit, drain=True)
        return pair.client.receive_data(raw((far.session.channel, flow)), 1.0)

    assert told(2, 3) == [] and (link.drain, link.credit) == (True, 3)
    assert told(5, 0) == [LinkDrained(link)] and not link.drain


def test_credit_granted_before_the_attach_was_answered_counts() -> None:
    """A client may send attach and flow in one piece; lost credit would be a receiver that waits for ever."""
    pair = Pair()
    session = pair.begin()
    link = session.new_receiver("early")
    link.attach()
    link.grant(7)
    pair.pump()
    far = pair.far_end(session, "early")
    assert far.credit == 7 and far.sendable
    flow = next(f for _, f, _ in pair.from_client.frames if isinstance(f, Flow))
    assert flow.delivery_count is None, "the sender's count is not known before its attach (2.7.4)"


def test_an_echo_is_answered_once() -> None:
    """A flow of the session answers for the session, a flow of a link for the link; no answer asks for another."""
    pair = Pair()
    link, far = pair.sender()
    before = len(pair.from_server.frames)
    link.session.send_flow(echo=True)
    far_flow = Flow(None, 10, 0, 10, handle=link.handle, delivery_count=0, link_credit=5, echo=True)
    link.session.send_performative(far_flow)
    pair.pump()
    answers = [f for _, f, _ in pair.from_server.frames[before:]]
    assert [f.handle for f in answers if isinstance(f, Flow)] == [None, far.handle] and len(answers) == 2


def test_a_batch_keeps_its_format() -> None:
    """message-format is how a receiver knows that data sections are messages."""
    pair = Pair()
    link, _ = pair.sender()
    inner = [Message(data=[b"%d" % n]).encode() for n in range(3)]
    link.send(encode_batch(inner), b"b", message_format=BATCH_FORMAT)
    pair.pump()
    (delivery,) = pair.deliveries()
    assert delivery.message_format == BATCH_FORMAT and Message.decode(delivery.payload).data == inner


# ── deliveries of several frames, by hand ──


def frames_of(link: Any, *transfers: tuple[Transfer, bytes]) -> None:
    for transfer, payload in transfers:
        body = transfer.encode() + payload
        head = (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + link.session.channel.to_bytes(2, "big")
        link.session.connection.write(head + body)


def test_settled_said_on_any_frame_settles_the_delivery() -> None:
    """The flag may come first, in the middle or last (2.7.5)."""
    for said_on in range(3):
        pair = Pair()
        link, _ = pair.sender()
        frames_of(
            link,
            (Transfer(0, 0, b"t", 0, settled=said_on == 0, more=True), b"a"),
            (Transfer(0, settled=said_on == 1, more=True), b"b"),
            (Transfer(0, settled=said_on == 2), b"c"),
        )
        pair.pump()
        (delivery,) = pair.deliveries()
        assert delivery.settled and delivery.payload == b"abc"


def test_link_tells_that_a_message_has_arrived_in_part() -> None:
    """A receiver need not give up waiting for a large message that is on its way."""
    pair = Pair()
    link, far = pair.sender()
    told = []
    for transfer in (Transfer(0, 0, b"t", 0, more=True), Transfer(0)):
        told.append(far.arrived_bytes)
        frames_of(link, (transfer, b"half"))
        pair.pump()
    assert [*told, far.arrived_bytes] == [0, 4, 0]


def test_an_aborted_delivery_never_happened() -> None:
    """The bytes are dropped, wherever the delivery was aborted, and the next delivery is whole."""
    pair = Pair()
    link, far = pair.sender()
    frames_of(
        link,
        (Transfer(0, 0, b"1", 0, more=True), b"half"),
        (Transfer(0, aborted=True), b"more"),
        (Transfer(0, 1, b"2", 0, aborted=True), b"none"),
        (Transfer(0, 2, b"3", 0, aborted=True, more=True), b"none"),
        (Transfer(0, 3, b"4", 0), b"whole"),
    )
    pair.pump()
    assert [d.payload for d in pair.deliveries()] == [b"whole"]
    assert far.unsettled == 1 and pair.server.partial_bytes == 0
    # Credit is spent with the first frame: a receiver that grants it by hand must know.
    assert [event.link for event in of_kind(pair.at_server, DeliveryAborted)] == [far] * 3


def test_deliveries_of_two_links_may_be_interleaved() -> None:
    """Frames of one session mix; each link puts its own together."""
    pair = Pair()
    one, _ = pair.sender(name="one")
    two, _ = pair.sender(one.session, "two")
    frames_of(one, (Transfer(one.handle, 0, b"1", 0, more=True), b"a"))
    frames_of(one, (Transfer(two.handle, 1, b"2", 0, more=True), b"x"))
    frames_of(one, (Transfer(one.handle), b"b"), (Transfer(two.handle), b"y"))
    pair.pump()
    assert [(d.link.name, d.payload) for d in pair.deliveries()] == [("one", b"ab"), ("two", b"xy")]


@pytest.mark.parametrize(
    "second",
    [Transfer(0, 7, b"2", 0), Transfer(0)],
    ids=["another id inside a delivery", "a delivery without id and tag"],
)
def test_frames_that_fit_no_delivery_are_an_error(second: Transfer) -> None:
    """A link carries one delivery at a time, and each begins with its id and tag."""
    pair = Pair()
    link, _ = pair.sender()
    if second.delivery_id is not None:
        frames_of(link, (Transfer(0, 0, b"1", 0, more=True), b"a"))
    frames_of(link, (second, b"b"))
    pair.server.receive_data(pair.client.data_to_send(), 1.0)
    assert pair.server.is_over


def test_a_message_beyond_the_limit_is_drained_and_told() -> None:
    """The sender gets its rejection, not a dead link; the link works on."""
    pair = Pair(server={"max_frame_size": 512})
    link, far = pair.sender()
    far.max_message_size = 1000
    for size in (1000, 1001, 50_000, 10):
        link.send(b"x" * size, b"%d" % size)
    pair.pump()
    assert [(len(d.payload), d.too_large) for d in pair.deliveries()] == [
        (1000, False),
        (0, True),
        (0, True),
        (10, False),
    ]
    assert far.unsettled == 4 and pair.server.partial_bytes == 0


def test_a_sender_that_does_not_wait_for_the_attach_is_heard() -> None:
    """The Python SDK knows no credit. In one piece or in many, the same deliveries."""
    pair = Pair(answer=answer_nothing)
    pair.client.open()
    session = pair.client.new_session()
    session.begin()
    link = session.new_sender("eager")
    link.attach()
    pair.pump()
    pair.server.open()
    frames_of(link, (Transfer(0, 0, b"1", 0), b"early"))
    pair.client_speaks()
    (delivery,) = pair.deliveries()
    assert delivery.payload == b"early" and delivery.link.state is EndpointState.OFFERED
    assert not pair.server.is_over


def test_the_trace_tells_of_every_frame() -> None:
    """Frames are traced in both directions, with their channel; transfers are traced by their size alone."""
    pair = Pair()
    told: list[tuple[str, int, str]] = []
    pair.client.trace = lambda *line: told.append(line)
    pair.server.trace = lambda *line: told.append(line)
    link, far = pair.sender()
    link.send(b"m" * 9, b"1")
    pair.pump()
    far.settle(0, 0, ACCEPTED_BYTES, 1)
    pair.pump()
    text = [f"{direction} {line.split('(')[0].split()[0]}" for direction, _, line in told]
    for word in ("Open", "Begin", "Attach", "Flow"):
        assert f"-> {word}" in text and f"<- {word}" in text
    assert "-> transfer" in text and "<- transfer" in text and "-> disposition" in text and "<- Disposition" in text
    assert all(channel == 0 for _, channel, _ in told)
