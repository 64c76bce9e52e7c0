"""The follower of a conversation loses no byte, whatever passes, and knows what passes when it is AMQP."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, frame
from pairbus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from pairbus.proxy.conversation import DOWN, UP, Conversation, Unit, path_of, settled_ids

PING = b"\x00\x53\x73 application/vnd.ms-servicebus-ping"


def begin(remote_channel: int | None = None) -> bytes:
    return Begin(remote_channel=remote_channel, next_outgoing_id=0, incoming_window=9, outgoing_window=9).encode()


def attach(handle: int, address: str) -> bytes:
    return Attach(
        name=address, handle=handle, role=False, source=Source(address="me"), target=Target(address=address)
    ).encode()


def transfer(handle: int, delivery_id: int, payload: bytes = b"", *, more: bool = False) -> bytes:
    return Transfer(handle=handle, delivery_id=delivery_id, delivery_tag=b"t", more=more).encode() + payload


SAID_UP = b"".join(
    [
        SASL_HEADER,
        frame(0, SaslInit(mechanism="ANONYMOUS").encode(), 1),
        AMQP_HEADER,
        frame(0, Open(container_id="c").encode()),
        frame(1, begin()),
        frame(1, attach(3, "amqps://127.0.0.1:5671/Orders")),
        frame(1, attach(4, "invoices")),
        EMPTY_FRAME,
        frame(1, transfer(3, 0, b"first ", more=True)),
        frame(1, transfer(3, 0, b"half")),
        frame(1, transfer(4, 1, PING)),
        frame(1, Detach(handle=4, closed=True).encode()),
        frame(1, transfer(4, 2)),
    ]
)


def heard(conversation: Conversation, data: bytes, cuts: list[int]) -> list[Unit]:
    units: list[Unit] = []
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, end in itertools.pairwise(edges):
        units += conversation.read(UP, data[start:end])
    return units


@given(st.lists(st.integers(0, len(SAID_UP)), max_size=30))
def test_frames_mean_the_same_in_any_pieces(cuts: list[int]) -> None:
    """TCP cuts where it likes."""
    conversation = Conversation()
    units = heard(conversation, SAID_UP, cuts)
    assert b"".join(unit.raw for unit in units) == SAID_UP
    transfers = [
        (unit.link.path if unit.link else None, unit.delivery_id, unit.is_ping) for unit in units if unit.is_transfer
    ]
    assert transfers == [("orders", 0, False), ("orders", None, False), ("invoices", 1, True), (None, None, False)]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8), st.sampled_from([b"", AMQP_HEADER]))
def test_nonsense_passes_unchanged(data: bytes, cuts: list[int], head: bytes) -> None:
    """TLS and HTTP are nonsense here; what stays back is at most one frame, or header, that is not whole yet."""
    conversation = Conversation()
    passed = b"".join(unit.raw for unit in heard(conversation, head + data, cuts))
    assert (head + data).startswith(passed)
    if head + data and not (head + data).startswith(b"AMQP"[: len(head + data)]):
        assert passed == data


def test_answers_are_matched_across_different_channels_and_ranges() -> None:
    """The broker numbers its channels itself, and settles many deliveries with one frame."""
    conversation = Conversation()
    list(conversation.read(UP, SAID_UP))
    list(conversation.read(DOWN, SASL_HEADER + AMQP_HEADER + frame(7, begin(remote_channel=1))))
    disposition = Disposition(role=True, first=0, last=5, settled=True, state=Accepted())
    (unit,) = conversation.read(DOWN, frame(7, disposition.encode()))
    assert unit.performative == disposition
    sent = conversation.deliveries(conversation.client_channel(unit), UP)
    assert [(i, sent[i].path) for i in settled_ids(disposition, sent)] == [(0, "orders"), (1, "invoices")]
    assert conversation.broker_channel(1) == 7


def test_paths_are_compared_without_host_and_case() -> None:
    for address in ("amqps://127.0.0.1:5671/Orders", "sb://host/orders/", "ORDERS", "/orders"):
        assert path_of(address) == "orders"
    assert path_of("news/Subscriptions/All") == "news/subscriptions/all"
    assert path_of(None) == ""
