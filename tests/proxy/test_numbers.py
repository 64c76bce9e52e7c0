"""Each peer hears of its own numbers, also after frames were taken out of the session between them."""

from __future__ import annotations

from typing import Any

from pairbus.amqp.frames import frame
from pairbus.amqp.performatives import Accepted, Disposition, Flow, Transfer, decode_performative
from pairbus.proxy.conversation import FollowedLink, Unit
from pairbus.proxy.numbers import DeliveryNumbers

CHANNEL = 3
LINK = FollowedLink("a", "orders", CHANNEL, client_sends=True)


def transfer(delivery_id: int, *, begins: bool = True, has_more: bool = False) -> Unit:
    head = Transfer(handle=1, delivery_id=delivery_id, delivery_tag=b"t", more=has_more)
    raw = frame(CHANNEL, head.encode() + b"payload")
    return Unit(raw, None, LINK, True, delivery_id if begins else None, has_more=has_more)


def delivery_id(raw: bytes) -> int | None:
    what, end = decode_performative(raw[8:], 0)
    assert isinstance(what, Transfer) and raw[8 + end :] == b"payload"
    assert (what.handle, what.delivery_tag, raw[6:8]) == (1, b"t", CHANNEL.to_bytes(2, "big"))
    return what.delivery_id


def flow(**fields: Any) -> Unit:
    given: dict[str, Any] = {"incoming_window": 9, "outgoing_window": 9, "next_outgoing_id": 0, "handle": 1, **fields}
    what = Flow(**given)
    return Unit(frame(CHANNEL, what.encode()), what, LINK)


def read_flow(raw: bytes) -> Flow:
    what, _ = decode_performative(raw[8:], 0)
    assert isinstance(what, Flow)
    return what


def test_session_without_refusals_passes_byte_for_byte() -> None:
    numbers = DeliveryNumbers()
    for unit in (transfer(7), transfer(8, has_more=True), transfer(8, begins=False), transfer(9)):
        assert numbers.transfer(unit) == unit.raw
    said = flow(delivery_count=3, next_incoming_id=4)
    assert numbers.flow_up(said, said.performative) == said.raw  # type: ignore[arg-type]
    assert numbers.flow_down(said, said.performative) == said.raw  # type: ignore[arg-type]
    assert not numbers.differ


def test_target_hears_delivery_ids_without_a_gap() -> None:
    """Ids wrap at 32 bits; the frames behind the first of a delivery follow it."""
    numbers = DeliveryNumbers()
    assert delivery_id(numbers.transfer(transfer(0xFFFFFFFE))) == 0xFFFFFFFE
    numbers.refuse(LINK, 1)
    assert delivery_id(numbers.transfer(transfer(0, has_more=True))) == 0xFFFFFFFF
    assert delivery_id(numbers.transfer(transfer(0, begins=False))) == 0xFFFFFFFF
    assert delivery_id(numbers.transfer(transfer(1))) == 0


def test_answers_find_the_deliveries_of_the_client() -> None:
    """Answers also reach deliveries that overtook another one, and none that waits."""
    numbers = DeliveryNumbers()
    unsettled = dict.fromkeys((5, 6, 7, 8), LINK)
    for each in (5, 7, 8):  # the proxy holds delivery 6 back
        numbers.transfer(transfer(each))
    answer = Disposition(role=True, first=5, last=6, settled=True, state=Accepted())
    assert numbers.answered(answer, unsettled) == [5, 7]
    numbers.settled(7)
    assert delivery_id(numbers.transfer(transfer(6))) == 8
    assert numbers.answered(Disposition(role=True, first=7, last=8, settled=True), unsettled) == [8, 6]


def test_credit_and_windows_are_those_of_each_peer() -> None:
    """The refused message cost the client a credit and an id, and the target neither."""
    numbers = DeliveryNumbers()
    granted = flow(delivery_count=0, link_credit=2, next_incoming_id=10, next_outgoing_id=50)
    assert numbers.flow_down(granted, granted.performative) == granted.raw  # type: ignore[arg-type]
    numbers.refuse(LINK, 3)
    numbers.transfer_down()
    again = numbers.credit(LINK)
    assert again is not None
    assert (again.delivery_count, again.link_credit, again.next_incoming_id, again.next_outgoing_id) == (1, 2, 13, 51)
    asked = flow(delivery_count=1, next_outgoing_id=13)
    heard = read_flow(numbers.flow_up(asked, asked.performative))  # type: ignore[arg-type]
    assert (heard.delivery_count, heard.next_outgoing_id) == (0, 10)
    numbers.forget(LINK)
    assert numbers.credit(LINK) is None
