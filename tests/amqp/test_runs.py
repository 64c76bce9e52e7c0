"""Transfers that are read in one loop: a run says exactly what its frames say one by one.

A connection that traces reads every frame on its own, so it is the measure of one that does not.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import AmqpEvent, ConnectionOpened, Delivery, LinkAttached, SessionBegun
from pairbus.amqp.frames import frame
from pairbus.amqp.link import ReceiverLink
from pairbus.amqp.performatives import Attach, Begin, Open, Source, Target, Transfer
from pairbus.amqp.sasl import SaslServer
from pairbus.amqp.transfers import TransferHeads, mould_of

WINDOW, CREDIT, UNSETTLED_MAX, FRAME_SIZE_MAX, MESSAGE_SIZE_MAX = 12, 10, 40, 600, 300
GREETING = b"AMQP\x00\x01\x00\x00" + b"".join(
    frame(0, performative.encode())
    for performative in (
        Open(container_id="client"),
        Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100),
        Attach(name="one", handle=0, role=False, source=Source("a"), target=Target("b"), initial_delivery_count=0),
        Attach(name="two", handle=7, role=False, source=Source("a"), target=Target("b"), initial_delivery_count=0),
    )
)


def hear(pieces: list[bytes], *, one_by_one: bool) -> tuple[list[str], bytes, list[tuple[int, int, int]]]:
    """Return events, answers and counters of the links, for a server that settles no delivery."""
    limits = ConnectionSettings(
        "server", max_frame_size=FRAME_SIZE_MAX, incoming_window=WINDOW, unsettled_max=UNSETTLED_MAX, idle_time_out_ms=0
    )
    connection = Connection(limits, SaslServer(), trace=(lambda *_: None) if one_by_one else None)
    said, links, answers = list[str](), list[ReceiverLink](), b""
    for piece in (GREETING, *pieces):
        for event in connection.receive_data(piece, 1.0):
            said.append(describe(event))
            if isinstance(event, ConnectionOpened):
                connection.open()
            elif isinstance(event, SessionBegun):
                event.session.begin()
            elif isinstance(event, LinkAttached):
                assert isinstance(event.link, ReceiverLink)
                links.append(event.link)
                event.link.attach(source=Source("a"), target=Target("b"), max_message_size=MESSAGE_SIZE_MAX)
                event.link.keep_credit(CREDIT)
        answers += connection.data_to_send()
    return said, answers, [(link.credit, link.delivery_count, link.unsettled) for link in links]


def describe(event: AmqpEvent) -> str:
    if not isinstance(event, Delivery):
        return repr(event) if "object at" not in repr(event) else type(event).__name__
    fields = event.delivery_id, event.tag, event.message_format, event.settled, event.payload, event.too_large
    return f"{event.link.name} {fields}"


def transfer_frame(
    handle: int, delivery_id: int, tag: bytes, message_format: int, settled: bool, size: int, ours: bool
) -> bytes:
    payload = bytes([delivery_id & 0xFF]) * size
    if ours:
        return TransferHeads(0, handle).first(delivery_id, tag, message_format, settled, False, size) + payload
    table = Transfer(
        handle=handle, delivery_id=delivery_id, delivery_tag=tag, message_format=message_format, settled=settled
    )
    return frame(0, table.encode() + payload)


alike = st.tuples(
    st.sampled_from([0, 0, 0, 7, 9]),  # no link with handle 9 is attached
    st.binary(max_size=33),
    st.sampled_from([0, 0, 1]),
    st.booleans(),
    st.booleans(),
    st.lists(st.sampled_from([0, 1, 40, 40, 40, 299, 300, 301, 560]), min_size=1, max_size=30),
)


def stream_of(runs: list[tuple[int, bytes, int, bool, bool, list[int]]]) -> bytes:
    """Runs of frames that differ in size, delivery id and the first byte of the tag."""
    frames, delivery_id = [], 250  # ids pass 255 within the stream, and then need more than one byte
    for handle, tag, message_format, settled, ours, sizes in runs:
        for number, size in enumerate(sizes):
            short = tag[:32] if ours else tag
            own = bytes([number]) + short[1:] if short else short
            frames.append(transfer_frame(handle, delivery_id, own, message_format, settled, size, ours))
            delivery_id += 1
    return b"".join(frames)


@settings(max_examples=300, deadline=None)
@given(st.lists(alike, min_size=1, max_size=4), st.lists(st.integers(0, 20_000), max_size=4))
@example([(0, b"abcd", 0, False, True, [40] * 41)], [])  # one delivery more than may be unsettled
@example([(0, b"abcd", 0, True, True, [40] * 60)], [])  # window and credit are renewed within the run
def test_a_run_says_what_its_frames_say_one_by_one(
    runs: list[tuple[int, bytes, int, bool, bool, list[int]]], cuts: list[int]
) -> None:
    """Events, answers and counts, also at the limits and however the bytes are cut."""
    data = stream_of(runs)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    assert hear(pieces, one_by_one=False) == hear(pieces, one_by_one=True)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_frame_in_a_run_is_read_like_a_single_frame(draw: st.DataObject) -> None:
    """Any byte of the frames may be damaged: the fast reader accepts exactly what the slow one accepts."""
    sizes = draw.draw(st.lists(st.sampled_from([0, 1, 40]), min_size=3, max_size=8))
    data = bytearray(stream_of([(0, b"abcd", 0, False, True, sizes)]))
    for _ in range(draw.draw(st.integers(1, 2))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    assert hear([bytes(data)], one_by_one=False) == hear([bytes(data)], one_by_one=True)


def test_the_frames_of_our_own_sender_have_a_mould() -> None:
    """Without a template the tests above would test nothing, and nothing would be faster."""
    data = stream_of([(7, b"abcd", 0, False, True, [40, 50])])
    mould = mould_of(data, 8, int.from_bytes(data[:4], "big"))
    assert mould is not None
    assert (mould.handle, mould.message_format, mould.settled) == (7, 0, False)
