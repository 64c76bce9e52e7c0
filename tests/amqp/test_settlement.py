"""Settlement between a client object and a server object: ranges, serial numbers, words that ask for an answer."""

from __future__ import annotations

import pytest

from pairbus.amqp.events import (
    ConnectionFailed,
    Disposed,
    SettlementAnswered,
)
from pairbus.amqp.link import ranges
from pairbus.amqp.performatives import ACCEPTED_BYTES, Accepted, Received, Rejected
from pairbus.amqp.types import encode
from tests.amqp.pair import Pair
from tests.amqp.test_transfer import of_kind


def test_a_range_settles_every_delivery_in_it_and_no_other() -> None:
    """One disposition for many is what makes acknowledgement cheap."""
    pair = Pair()
    link, far = pair.sender()
    ids = [link.send(b"m", b"%d" % n) for n in range(10)]
    pair.pump()
    far.settle(ids[2], ids[7], ACCEPTED_BYTES, 6)
    pair.pump()
    (disposed,) = of_kind(pair.at_client, Disposed)
    assert [d.delivery_id for d in disposed.deliveries] == ids[2:8]
    assert disposed.settled and disposed.state == Accepted()
    assert link.session.sent_unsettled == 4 and far.unsettled == 4


@pytest.mark.parametrize("start", [0xFFFFFFFF, 0xFFFFFFFB, 0x7FFFFFFE])
def test_delivery_ids_and_counts_wrap_around(start: int) -> None:
    """Serial numbers of 32 bits (RFC 1982): a long-lived session passes 2^32, and a range may span the turn."""
    pair = Pair()
    link, far = pair.sender()
    session = link.session
    session._next_delivery_id = session._next_outgoing_id = start
    far.session._next_incoming_id = start
    link.delivery_count = far.delivery_count = start
    pair.from_client._next_delivery_id[session.channel] = start
    far.grant(20)
    pair.pump()
    ids = [link.send(b"m", b"%d" % n) for n in range(10)]
    assert ids == [(start + n) & 0xFFFFFFFF for n in range(10)]
    pair.pump()
    assert [d.delivery_id for d in pair.deliveries()] == ids
    assert far.delivery_count == link.delivery_count == (start + 10) & 0xFFFFFFFF
    assert link.credit == 10
    far.grant(20)
    pair.pump()
    assert link.credit == 20 and link.sendable
    far.settle(ids[0], ids[9], ACCEPTED_BYTES, 10)
    pair.pump()
    (disposed,) = of_kind(pair.at_client, Disposed)
    assert [d.delivery_id for d in disposed.deliveries] == ids


def test_an_unsettled_outcome_is_answered_and_not_reported_again() -> None:
    """The Python SDK settles so: it names the outcome unsettled and waits for the broker's word."""
    pair = Pair()
    link, far = pair.receiver()
    link.grant(5)
    pair.pump()
    delivery_id = far.send(b"m", b"1")
    pair.pump()
    link.settle(delivery_id, delivery_id, ACCEPTED_BYTES, 1, settled=False)
    pair.pump()
    (disposed,) = of_kind(pair.at_server, Disposed)
    assert not disposed.settled and [d.tag for d in disposed.deliveries] == [b"1"]
    disposed.session.settle_sent(delivery_id, delivery_id, ACCEPTED_BYTES)
    pair.pump()
    assert of_kind(pair.at_client, SettlementAnswered) == [
        SettlementAnswered(link.session, delivery_id, delivery_id, True, Accepted())
    ]
    link.settle(delivery_id, delivery_id, ACCEPTED_BYTES, 0)
    pair.pump()
    assert len(of_kind(pair.at_server, Disposed)) == 1


def test_a_sending_peers_word_is_nobodys_event_when_nobody_asked() -> None:
    """A receiver that settles at once waits for nothing, and is not bothered with echoes."""
    pair = Pair()
    link, far = pair.receiver()
    link.grant(5)
    pair.pump()
    delivery_id = far.send(b"m", b"1")
    pair.pump()
    link.settle(delivery_id, delivery_id, ACCEPTED_BYTES, 1)
    pair.pump()
    far.session.settle_sent(delivery_id, delivery_id, ACCEPTED_BYTES)
    pair.pump()
    assert not of_kind(pair.at_client, SettlementAnswered) and link.unsettled == 0


def test_progress_is_no_outcome() -> None:
    """`received`, or no state at all, says how far the receiver got: the sender goes on waiting for the outcome."""
    pair = Pair()
    link, far = pair.sender()
    delivery_id = link.send(b"m", b"1")
    pair.pump()
    for progress in (Received(0, 0).encode(), encode(None)):
        far.session.send_disposition(True, delivery_id, delivery_id, False, progress)
        pair.pump()
        assert link.session.sent_unsettled == 1 and not of_kind(pair.at_client, Disposed)
    far.settle(delivery_id, delivery_id, Rejected().encode(), 1)
    pair.pump()
    assert link.session.sent_unsettled == 0
    assert [event.state for event in of_kind(pair.at_client, Disposed)] == [Rejected()]


def test_a_range_of_two_billion_costs_no_more_than_what_is_out() -> None:
    """A peer may name any range; only its own deliveries are looked at."""
    pair = Pair()
    link, far = pair.sender()
    ids = [link.send(b"m", b"%d" % n) for n in range(5)]
    pair.pump()
    far.session.send_disposition(True, 0, 0x7FFFFFFF, True, ACCEPTED_BYTES)
    pair.pump()
    (disposed,) = of_kind(pair.at_client, Disposed)
    assert [d.delivery_id for d in disposed.deliveries] == ids


def test_a_range_backwards_is_an_error() -> None:
    """In serial numbers more than half the circle is backwards."""
    pair = Pair()
    _, far = pair.sender()
    far.session.send_disposition(True, 5, 4, True, ACCEPTED_BYTES)
    pair.pump()
    assert isinstance(pair.at_client[-1], ConnectionFailed)


def test_settled_deliveries_leave_nothing_behind() -> None:
    """The two ends do not remember a delivery that needs no answer."""
    pair = Pair()
    link, far = pair.sender()
    link.send(b"m", b"1", settled=True)
    pair.pump()
    assert pair.deliveries()[0].settled
    assert link.session.sent_unsettled == 0 and far.unsettled == 0


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], []),
        ([7], [(7, 7)]),
        ([3, 4, 5], [(3, 5)]),
        ([1, 3, 4, 9], [(1, 1), (3, 4), (9, 9)]),
        ([0xFFFFFFFE, 0xFFFFFFFF, 0, 1], [(0xFFFFFFFE, 1)]),
        ([0xFFFFFFFF, 0, 2], [(0xFFFFFFFF, 0), (2, 2)]),
    ],
)
def test_consecutive_ids_are_one_range_also_where_they_wrap(ids: list[int], expected: list[tuple[int, int]]) -> None:
    """One disposition settles a range, and ids are serial numbers of 32 bits."""
    assert ranges(ids) == expected
