"""Transactional deliveries and dispositions between a client object and a server object (AMQP 4.4)."""

from __future__ import annotations

import pytest

from pairbus.amqp.events import AmqpEvent, Delivery, Disposed, SettlementAnswered, TransactionalDelivery
from pairbus.amqp.performatives import ACCEPTED_BYTES, RELEASED_BYTES, Accepted, Released, TransactionalState
from tests.amqp.pair import Pair
from tests.amqp.test_transfer import of_kind

TXN = b"transaction"
PROVISIONAL = TransactionalState(TXN, Accepted())


@pytest.mark.parametrize("size", [1, 5000], ids=["one frame", "several"])
def test_delivery_in_a_transaction_names_it(size: int) -> None:
    """The state comes with the first frame; a delivery without one is of the plain class."""
    pair = Pair(server={"max_frame_size": 1024})
    link, _ = pair.sender()
    link.send_in(TXN, b"m" * size, b"0", message_format=5)
    link.send(b"plain", b"1")
    pair.pump()
    inside, outside = pair.deliveries()
    assert isinstance(inside, TransactionalDelivery)
    assert (inside.txn_id, inside.payload, inside.message_format, inside.settled) == (TXN, b"m" * size, 5, False)
    assert type(outside) is Delivery and outside.payload == b"plain"


def test_transaction_may_be_named_by_a_later_frame_of_a_delivery() -> None:
    """The message must not be committed outside it because its first frame has no state."""
    pair = Pair()
    _, far = pair.sender()
    events: list[AmqpEvent] = []
    far.on_transfer(0, b"0", 0, False, True, False, None, b"one ", events)
    far.on_transfer(None, None, None, False, False, False, TransactionalState(TXN), b"two", events)
    [delivery] = events
    assert isinstance(delivery, TransactionalDelivery) and (delivery.txn_id, delivery.payload) == (TXN, b"one two")


def test_deliveries_of_one_read_each_name_their_transaction() -> None:
    """Frames that look alike are read together, and must not lose their state by that."""
    pair = Pair()
    link, _ = pair.sender()
    for number in range(5):
        link.send_in(TXN, b"m", b"%d" % number)
    pair.pump()
    assert [type(delivery) for delivery in pair.deliveries()] == [TransactionalDelivery] * 5


def test_transactional_disposition_leaves_the_delivery_unsettled() -> None:
    """A roll-back leaves it as it was: the receiver may settle it again, and that is reported again."""
    pair = Pair()
    link, far = pair.sender()
    session = link.session
    delivery_id = link.send(b"m", b"0")
    pair.pump()
    far.settle(delivery_id, delivery_id, PROVISIONAL.encode(), 0, settled=False)
    pair.pump()
    (disposed,) = of_kind(pair.at_client, Disposed)
    assert disposed.state == PROVISIONAL and not disposed.settled and session.sent_unsettled == 1
    session.answer_sent(delivery_id, PROVISIONAL.encode())
    pair.pump()
    (answered,) = of_kind(pair.at_server, SettlementAnswered)
    assert answered.state == PROVISIONAL and not answered.settled
    far.settle(delivery_id, delivery_id, RELEASED_BYTES, 1)
    pair.pump()
    assert of_kind(pair.at_client, Disposed)[-1].state == Released() and session.sent_unsettled == 0


def test_final_outcome_settles_a_kept_delivery_once() -> None:
    """A commit ends the delivery; after the end of its link there is nothing to settle."""
    pair = Pair()
    link, far = pair.sender()
    delivery_id = link.send(b"m", b"0")
    pair.pump()
    far.settle(delivery_id, delivery_id, PROVISIONAL.encode(), 0, settled=False)
    pair.pump()
    for _ in range(2):
        link.session.settle_kept(delivery_id, ACCEPTED_BYTES)
        pair.pump()
    (answered,) = of_kind(pair.at_server, SettlementAnswered)
    assert answered.state == Accepted() and answered.settled and link.session.sent_unsettled == 0


def test_settled_transactional_disposition_ends_the_delivery() -> None:
    """A receiver that settles at once does not wait for the outcome of the transaction."""
    pair = Pair()
    link, far = pair.sender()
    delivery_id = link.send(b"m", b"0")
    pair.pump()
    far.settle(delivery_id, delivery_id, PROVISIONAL.encode(), 1)
    pair.pump()
    (disposed,) = of_kind(pair.at_client, Disposed)
    assert disposed.settled and link.session.sent_unsettled == 0
