"""Bytes that break the protocol: always events, at most one ConnectionFailed, never an exception, never much memory."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import AmqpEvent, ConnectionFailed, Delivery, SessionBegun
from pairbus.amqp.frames import AMQP_HEADER, SASL_HEADER, FrameBuffer
from pairbus.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    Transfer,
)
from pairbus.amqp.sasl import SaslClient, SaslServer
from pairbus.amqp.types import Described, Symbol, ULong, encode
from tests.amqp.fuzz import CORPUS, EagerUser, case, check
from tests.amqp.pair import StrictReader
from tests.amqp.test_endings import ATTACH, BEGIN, OPEN, raw

PROLOGUE = AMQP_HEADER + raw(OPEN, BEGIN, ATTACH)
HALF = (0, Transfer(0, 0, b"t", 0, more=True))


def body(frame_body: bytes, channel: int = 0, frame_type: int = 0, doff: int = 2) -> bytes:
    return struct.pack(">IBBH", 8 + len(frame_body), doff, frame_type, channel) + frame_body


def heard(data: bytes) -> list[AmqpEvent]:
    return check(data, [len(data)])


WRONG: dict[str, tuple[bytes, str]] = {
    "no AMQP at all": (b"GET / HTTP/1.1\r\n\r\n", "framing-error"),
    "AMQP 0.9.1": (b"AMQP\x00\x00\x09\x01", "framing-error"),
    "a TLS header": (b"AMQP\x02\x01\x00\x00", "framing-error"),
    "SASL after SASL": (
        SASL_HEADER + body(SaslInit("ANONYMOUS").encode(), frame_type=1) + SASL_HEADER,
        "framing-error",
    ),
    "an AMQP frame during SASL": (SASL_HEADER + raw(OPEN), "framing-error"),
    "mechanisms from a client": (SASL_HEADER + body(SaslMechanisms(["X"]).encode(), frame_type=1), "decode-error"),
    "an empty SASL frame": (SASL_HEADER + body(b"", frame_type=1), "decode-error"),
    "a SASL frame after the exchange": (PROLOGUE + body(SaslInit("X").encode(), frame_type=1), "framing-error"),
    "a SASL performative in an AMQP frame": (PROLOGUE + raw((0, SaslInit("X"))), "decode-error"),
    "a frame type of 7": (PROLOGUE + body(Close().encode(), frame_type=7), "framing-error"),
    "a frame beyond the limit": (AMQP_HEADER + struct.pack(">IBBH", 70_001, 2, 0, 0), "framing-error"),
    "a frame of 4 GB": (AMQP_HEADER + b"\xff" * 8, "framing-error"),
    "a frame of 7 bytes": (AMQP_HEADER + struct.pack(">IBBH", 7, 2, 0, 0), "framing-error"),
    "a frame of 0 bytes": (AMQP_HEADER + bytes(8), "framing-error"),
    "a data offset of 1": (AMQP_HEADER + struct.pack(">IBBH", 8, 1, 0, 0), "framing-error"),
    "a data offset past the frame": (AMQP_HEADER + struct.pack(">IBBH", 12, 4, 0, 0) + bytes(4), "framing-error"),
    "a body of one byte": (PROLOGUE + body(b"\x00"), "decode-error"),
    "a body that looks like a transfer with the next frame": (
        PROLOGUE + body(b"\x00\x53") + b"\x14" * 8,
        "decode-error",
    ),
    "a begin before open": (AMQP_HEADER + raw(BEGIN), "illegal-state"),
    "a transfer before open": (AMQP_HEADER + raw((0, Transfer(0, 0, b"t"))), "not-allowed"),
    "a close before open": (AMQP_HEADER + raw((0, Close())), "illegal-state"),
    "two opens": (AMQP_HEADER + raw(OPEN, OPEN), "illegal-state"),
    "a max-frame-size of 511": (AMQP_HEADER + raw((0, Open("c", max_frame_size=511))), "not-allowed"),
    "an attach without a session": (AMQP_HEADER + raw(OPEN, ATTACH), "not-allowed"),
    "a transfer without a session": (AMQP_HEADER + raw(OPEN, (3, Transfer(0, 0, b"t"))), "not-allowed"),
    "a disposition without a session": (AMQP_HEADER + raw(OPEN, (3, Disposition(True, 0))), "not-allowed"),
    "an end without a session": (AMQP_HEADER + raw(OPEN, (0, End())), "not-allowed"),
    "two begins on a channel": (AMQP_HEADER + raw(OPEN, BEGIN, BEGIN), "not-allowed"),
    "a channel beyond the limit": (AMQP_HEADER + raw(OPEN, (16, Begin(None, 0, 1, 1))), "resource-limit-exceeded"),
    "a begin that answers nothing": (AMQP_HEADER + raw(OPEN, (0, Begin(5, 0, 1, 1))), "not-allowed"),
    "a transfer before attach": (AMQP_HEADER + raw(OPEN, BEGIN, (0, Transfer(0, 0, b"t"))), "unattached-handle"),
    "a flow on no link": (PROLOGUE + raw((0, Flow(None, 1, 0, 1, handle=9))), "unattached-handle"),
    "a detach of no link": (PROLOGUE + raw((0, Detach(9))), "unattached-handle"),
    "a handle that is in use": (PROLOGUE + raw((0, Attach("other", 0, False))), "handle-in-use"),
    "a handle beyond the limit": (PROLOGUE + raw((0, Attach("other", 16, False))), "resource-limit-exceeded"),
    "a transfer from the receiving end": (
        AMQP_HEADER + raw(OPEN, BEGIN, (0, Attach("r", 0, True)), (0, Transfer(0, 0, b"t"))),
        "unattached-handle",
    ),
    "a delivery without a tag": (PROLOGUE + raw((0, Transfer(0, 0))), "illegal-state"),
    "a delivery inside another": (PROLOGUE + raw(HALF, (0, Transfer(0, 1, b"u"))), "illegal-state"),
    "a tag of 40 bytes": (PROLOGUE + raw((0, Transfer(0, 0, b"t" * 40))), "invalid-field"),
    "a range backwards": (PROLOGUE + raw((0, Disposition(True, 9, 3))), "illegal-state"),
    "a disposition up to a text": (PROLOGUE + body(b"\x00\x53\x15\xc0\x06\x03\x41\x43\xa1\x01x"), "invalid-field"),
    "a disposition from nowhere": (PROLOGUE + body(b"\x00\x53\x15\xc0\x04\x03\x41\x40\x40"), "invalid-field"),
    "a message section as a frame": (PROLOGUE + body(b"\x00\x53\x70\x45"), "decode-error"),
    "a frame that is no performative": (PROLOGUE + body(b"\x41\x41\x41\x41"), "decode-error"),
    "an unknown descriptor": (PROLOGUE + body(encode(Described(ULong(0x99), []))), "decode-error"),
    "nested without end": (PROLOGUE + body(b"\x00\x53\x13" + b"\x00\x43" * 8_000), "decode-error"),
    "an attach of a book, which would be kept with its link": (
        PROLOGUE + raw((0, Attach("l" * 20_000, 5, False))),
        "resource-limit-exceeded",
    ),
    "an array of 4 billion nulls": (
        PROLOGUE + body(b"\x00\x53\x18\xd0\x00\x00\x00\x0e\x00\x00\x00\x01\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40"),
        "decode-error",
    ),
    "a mandatory field that is null": (AMQP_HEADER + body(b"\x00\x53\x10\xc0\x02\x01\x40"), "invalid-field"),
}


@pytest.mark.parametrize(("data", "condition"), WRONG.values(), ids=WRONG.keys())
def test_a_breach_ends_in_one_failure_with_its_condition(data: bytes, condition: str) -> None:
    """Bytes that the peer sends after the breach are not read."""
    events = heard(data + raw(BEGIN) + b"garbage")
    failed = events[-1]
    assert isinstance(failed, ConnectionFailed)
    assert failed.error.condition.endswith(condition), failed.error


LATE = {
    "an end": (0, End()),
    "a transfer on the channel": (0, Transfer(0, 1, b"t")),
    "a disposition": (0, Disposition(True, 0)),
    "a flow": (0, Flow(None, 1, 0, 1)),
    "a detach on the channel": (0, Detach(0)),
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
def test_a_late_frame_on_a_channel_that_has_ended_is_ignored(late: tuple[int, Any]) -> None:
    """The two ends may end a session at once: a frame then under way must not cost other sessions their connection."""
    events = heard(PROLOGUE + raw((0, End()), late, (1, Begin(None, 0, 1, 1))))
    assert isinstance(events[-1], SessionBegun)


@pytest.mark.parametrize(
    "late",
    [(0, Detach(0)), (0, Transfer(0, 1, b"t")), (0, Flow(None, 1, 0, 1, handle=0))],
    ids=["a detach", "a transfer", "a flow"],
)
def test_a_late_frame_on_a_handle_that_has_ended_is_ignored(late: tuple[int, Any]) -> None:
    """SDKs detach twice while closing, and the service speaks of links that it has just let go of."""
    events = heard(PROLOGUE + raw((0, Detach(0)), late, late, (1, Begin(None, 0, 1, 1))))
    assert isinstance(events[-1], SessionBegun)


@pytest.mark.parametrize("name", ["two opens", "a begin before open", "a detach of no link", "a frame of 4 GB"])
def test_the_peer_is_told_why_before_the_line_is_cut(name: str) -> None:
    """An open if there was none, and a close with the condition, in the output when the event is given."""
    server, reader = Connection(ConnectionSettings("s"), SaslServer()), StrictReader()
    user = EagerUser(server)
    for event in server.receive_data(WRONG[name][0], 1.0):
        user.answer(event)
    reader.read(server.data_to_send())
    close = reader.frames[-1][1]
    assert isinstance(close, Close) and close.error is not None
    assert close.error.condition.endswith(WRONG[name][1])
    assert [type(p).__name__ for _, p, _ in reader.frames].count("Open") == 1


def test_a_wrong_header_is_answered_with_the_right_one() -> None:
    """The standard's way of saying which protocol would be spoken here (2.2)."""
    server = Connection(ConnectionSettings("s"), SaslServer())
    server.receive_data(b"AMQP\x00\x00\x09\x01", 1.0)
    assert server.data_to_send() == SASL_HEADER


def test_unusual_but_legal_forms_are_understood() -> None:
    """Descriptors as symbols and as wide numbers, list32 everywhere, extended headers, signs of life."""
    ulong = b"\x80" + (0x14).to_bytes(8, "big")
    fields = b"\xc0\x07\x04\x43\x43\xa0\x01t\x43"
    data = (
        PROLOGUE
        + body(b"\x00" + ulong + fields + b"one")
        + body(b"\x00" + encode(Symbol("amqp:transfer:list")) + fields + b"two")
        + body(b"\xee" * 4 + b"\x00\x53\x14" + fields + b"three", doff=3)
        + body(b"")
        + body(b"\x00\x53\x14\xd0\x00\x00\x00\x0a\x00\x00\x00\x04\x43\x43\xa0\x01t\x43" + b"four")
        + body(b"\x00\x80" + (0x15).to_bytes(8, "big") + b"\xc0\x03\x02\x41\x43")
        + body(b"\x00\x80" + (0x18).to_bytes(8, "big") + b"\x45")
    )
    events = heard(data)
    assert [event.payload for event in events if isinstance(event, Delivery)] == [b"one", b"two", b"three", b"four"]
    assert type(events[-1]).__name__ == "ConnectionClosed"


CONVERSATIONS = [("python-receive.client", False), ("python-refused.client", False), ("python-receive.server", True)]


@pytest.mark.parametrize(("name", "as_client"), CONVERSATIONS)
def test_a_conversation_cut_off_at_any_byte_is_no_error(name: str, as_client: bool) -> None:
    """A line that breaks is the transport's affair: no failure, no exception, nothing half delivered."""
    data = (CORPUS / name).read_bytes()
    for cut in range(len(data)):
        events = check(data[:cut], [cut or 1], as_client=as_client)
        if not as_client:
            assert not [event for event in events if isinstance(event, ConnectionFailed)], f"cut at {cut}"


@pytest.mark.parametrize(("name", "as_client"), CONVERSATIONS)
def test_a_flipped_bit_anywhere_does_no_harm(name: str, as_client: bool) -> None:
    """A bit of each byte is flipped, a different one each time; the promises are asserted inside `check`."""
    data = (CORPUS / name).read_bytes()
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at * 5 % 8)
        check(bytes(flipped), [len(data)], as_client=as_client)


def test_thousands_of_mutations_do_no_harm() -> None:
    """A few seconds of the fuzzer; `python -m tests.amqp.fuzz` runs for longer."""
    for number in range(2500):
        data, pieces, as_client = case(number)
        try:
            check(data, pieces, as_client=as_client)
        except Exception as error:
            raise AssertionError(f"case {number}: {error!r}") from error


BROKE = sorted(path for path in CORPUS.iterdir() if path.suffix in (".to-client", ".to-server"))


@pytest.mark.parametrize("path", BROKE, ids=[path.name for path in BROKE])
def test_what_once_broke_the_core_breaks_it_no_more(path: Any) -> None:
    """Every find of the fuzzer is kept; in one piece and byte by byte."""
    data = path.read_bytes()
    for pieces in ([len(data)], [1], [1000]):
        check(data, pieces, as_client=path.suffix == ".to-client")


# ── floods ──


def test_a_flood_of_sessions_ends_at_the_limit() -> None:
    """Memory for `channel_max` + 1 sessions and no more."""
    server = Connection(ConnectionSettings("s", channel_max=7), SaslServer())
    begins = [(channel, Begin(None, 0, 1, 1)) for channel in range(100)]
    events = server.receive_data(AMQP_HEADER + raw(OPEN, *begins), 1.0)
    assert isinstance(events[-1], ConnectionFailed) and len(server.sessions) == 8


def test_a_flood_of_links_over_many_sessions_ends_at_the_limit() -> None:
    """A thousand sessions of a thousand links each would be a million links."""
    server = Connection(ConnectionSettings("s", link_max=50), SaslServer())
    frames: list[Any] = [OPEN]
    for channel in range(10):
        frames.append((channel, Begin(None, 0, 1, 1)))
        frames += [(channel, Attach(f"{channel}-{handle}", handle, False)) for handle in range(10)]
    events = server.receive_data(AMQP_HEADER + raw(*frames), 1.0)
    failed = events[-1]
    assert isinstance(failed, ConnectionFailed) and "50 links" in failed.error.description
    assert sum(len(session.links) for session in server.sessions) == 50


def test_a_flood_of_unsettled_deliveries_ends_at_the_limit() -> None:
    """A sender that ignores credit and a user who never settles."""
    server = Connection(ConnectionSettings("s", unsettled_max=100), SaslServer())
    frames = [(0, Transfer(0, number, b"t", 0)) for number in range(200)]
    events = server.receive_data(PROLOGUE + raw(*frames), 1.0)
    failed = events[-1]
    assert isinstance(failed, ConnectionFailed) and failed.error.condition == "amqp:link:transfer-limit-exceeded"
    assert len([event for event in events if isinstance(event, Delivery)]) == 100


def test_unfinished_messages_on_many_links_end_at_the_limit() -> None:
    """One large message is allowed; one on each of many links is not."""
    server = Connection(ConnectionSettings("s", partial_bytes_max=100_000), SaslServer())
    attaches = [(0, Attach(f"l{handle}", handle, False)) for handle in range(20)]
    server.receive_data(AMQP_HEADER + raw(OPEN, BEGIN, *attaches), 1.0)
    events: list[AmqpEvent] = []
    for handle in range(20):
        first = Transfer(handle, handle, b"t", 0, more=True).encode()
        events += server.receive_data(body(first + bytes(10_000)), 1.0)
    (failed,) = events
    assert isinstance(failed, ConnectionFailed) and failed.error.condition == "amqp:resource-limit-exceeded"
    assert server.partial_bytes == 0, "the bytes of unfinished messages are freed with the connection"


def peak_of(feed: Any) -> int:
    tracemalloc.start()
    try:
        feed()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_gigabyte_that_never_ends_costs_no_memory() -> None:
    """Frame after frame of one message on a link that takes 1 MiB: its bytes are dropped, it arrives as too large."""
    server = Connection(ConnectionSettings("s"), SaslServer())
    for event in server.receive_data(PROLOGUE, 1.0):
        EagerUser(server).answer(event)
    link = server.sessions[0].links[0]
    link.max_message_size = 1 << 20  # type: ignore[attr-defined]
    piece = body(Transfer(0, more=True).encode() + bytes(65_000))
    events: list[AmqpEvent] = []

    def feed() -> None:
        events.extend(server.receive_data(body(Transfer(0, 0, b"t", 0, more=True).encode()), 1.0))
        for _ in range((1 << 30) // 65_000):
            events.extend(server.receive_data(piece, 1.0))
            server.data_to_send()
        events.extend(server.receive_data(raw((0, Transfer(0))), 1.0))

    assert peak_of(feed) < 4 << 20
    (delivery,) = events
    assert isinstance(delivery, Delivery) and delivery.too_large and delivery.payload == b""


@pytest.mark.parametrize("size", [0, 1])
def test_endless_tiny_frames_cost_no_memory(size: int) -> None:
    """Memory holds the bytes of the message, not an object for each frame."""
    server = Connection(ConnectionSettings("s"), SaslServer())
    for event in server.receive_data(PROLOGUE, 1.0):
        EagerUser(server).answer(event)
    pieces = body(Transfer(0, more=True).encode() + bytes(size)) * 1000

    def feed() -> None:
        server.receive_data(body(Transfer(0, 0, b"t", 0, more=True).encode()), 1.0)
        for _ in range(30):
            server.receive_data(pieces, 1.0)
            server.data_to_send()

    assert peak_of(feed) < 2 << 20
    assert not server.is_over


def test_a_frame_that_trickles_in_is_held_once() -> None:
    """The buffer holds at most one incomplete frame: 64 KiB, however slowly it comes."""
    buffer = FrameBuffer(65_536)
    frame = struct.pack(">IBBH", 65_536, 2, 0, 0) + bytes(65_528)

    def feed() -> None:
        for at in range(len(frame) - 1):
            assert list(buffer.frames(frame[at : at + 1])) == []

    assert peak_of(feed) < 1 << 18
    assert len(buffer) == 65_535
    ((_, _, _, start, end),) = buffer.frames(b"\x00")
    assert end - start == 65_528


def test_a_client_survives_a_server_that_breaks_the_protocol() -> None:
    """The same core, the other role: SASL out of turn, a begin that answers nothing, an attach nobody asked for."""
    mechanisms = body(SaslMechanisms([Symbol("ANONYMOUS")]).encode(), frame_type=1)
    for data in (
        SASL_HEADER + mechanisms + mechanisms,
        SASL_HEADER + body(b"\x00\x53\x44\xc0\x03\x01\x50\x00", frame_type=1),
        SASL_HEADER + body(SaslInit("ANONYMOUS").encode(), frame_type=1),
        b"HTTP/1.1 400 Bad Request\r\n",
    ):
        client = Connection(ConnectionSettings("c"), SaslClient())
        (failed,) = client.receive_data(data, 1.0)
        assert isinstance(failed, ConnectionFailed) and client.is_over
        assert not client.data_to_send().endswith(SASL_HEADER * 2), "only a server says which header would be right"
    client = Connection(ConnectionSettings("c"), None)
    client.open()
    session = client.new_session()
    events = client.receive_data(AMQP_HEADER + raw(OPEN, (0, Begin(session.channel, 0, 1, 1))), 1.0)
    assert isinstance(events[-1], ConnectionFailed), "the peer answered a session that we never began"
