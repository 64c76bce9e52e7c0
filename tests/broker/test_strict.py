"""Every switch of the strict mode alone, with small numbers, and what Azure's own numbers are."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import fields
from pathlib import Path
from uuid import UUID

import pytest

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import ConnectionFailed
from pairbus.amqp.frames import EMPTY_FRAME
from pairbus.amqp.message import BATCH_FORMAT, Message, Properties, encode_batch
from pairbus.amqp.performatives import (
    ACCEPTED_BYTES,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Rejected,
    Source,
    Target,
    Transfer,
)
from pairbus.amqp.session import Session
from pairbus.amqp.types import Array, Symbol
from pairbus.auth import sas
from pairbus.broker.strict import (
    LENIENT,
    LIKE_AZURE,
    BeginNumbers,
    Credit,
    Heartbeats,
    Idle,
    OpenNumbers,
    Strictness,
    check_envelope,
)
from pairbus.broker.wire.session_links import SESSION_FILTER
from tests.broker.strict_world import Client, message

TRACKED = r" TrackingId:[0-9a-f-]{36}, SystemTracker:contoso:\w+, Timestamp:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d$"


def test_strict_means_every_row() -> None:
    """A row that was forgotten would be lenient in silence."""
    assert len(fields(Strictness)) == 14
    for row in fields(Strictness):
        assert getattr(LENIENT, row.name) in (None, False), row.name
        assert getattr(LIKE_AZURE, row.name) not in (None, False), row.name


def test_every_row_is_documented_with_its_switch_and_tested() -> None:
    """The table of docs/broker.md has the switches in the order of the rows."""
    page = (Path(__file__).parents[2] / "docs" / "broker.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\| `(\w+)` \|$", page.partition("## Strict mode")[2], re.MULTILINE)
    assert rows == [(str(number), row.name) for number, row in enumerate(fields(Strictness), 1)]
    tested = {int(number) for number in re.findall(r"test_row_(\d+)_", Path(__file__).read_text(encoding="utf-8"))}
    assert tested == set(range(1, 15))


async def test_row_1_open_says_azures_numbers_and_no_properties() -> None:
    client = await Client(Strictness(open=OpenNumbers())).open()
    (said,) = client.all(Open)
    assert (said.max_frame_size, said.channel_max, said.idle_time_out) == (65_536, 4999, 120_000)
    assert said.properties is None


async def test_row_2_begin_says_azures_numbers() -> None:
    client = await Client(Strictness(begin=BeginNumbers())).open()
    await client.session()
    (said,) = client.all(Begin)
    assert (said.next_outgoing_id, said.incoming_window, said.outgoing_window) == (1, 5000, 5000)
    assert said.handle_max == 255


async def test_row_2_one_link_too_many_ends_the_session_alone() -> None:
    """The links of the session are gone; the connection and its other sessions go on."""
    client = await Client(Strictness(begin=BeginNumbers(link_max=3))).open()
    await client.queue("orders")
    first, other = await client.session(), await client.session()
    for number in range(4):
        await client.sender(first, "orders", f"to {number}")
    (end,) = client.all(End)
    assert end.error is not None and end.error.condition == "amqp:resource-limit-exceeded"
    assert not client.namespace.links
    assert (await client.sender(other, "orders")).is_open


async def flood(client: Client, session: Session, count: int) -> None:
    """Send so many messages in one read, whatever the window says."""
    link = await client.sender(session, "orders")
    session._remote_window = 100
    for number in range(count):
        link.send(message(str(number)), b"%d" % number)
    await client.turn()


async def test_row_3_transfers_beyond_the_window_end_the_session() -> None:
    """A client that does not count would be cut off by Azure, and must learn it here."""
    client = await Client(Strictness(checks_window=True, begin=BeginNumbers(window=12))).open()
    await client.queue("orders")
    await flood(client, await client.session(), 13)
    (end,) = client.all(End)
    assert end.error is not None and end.error.condition == "amqp:session:window-violation"


async def test_row_3_the_window_is_renewed_after_two_thirds() -> None:
    """Not earlier: a client that waits for half of it to be used must not be served sooner here."""
    client = await Client(Strictness(checks_window=True, begin=BeginNumbers(window=12))).open()
    await client.queue("orders")
    session = await client.session()
    await flood(client, session, 7)
    assert [flow for flow in client.all(Flow) if flow.handle is None] == []
    link = session.links[0]
    link.send(message("8"), b"8")  # type: ignore[attr-defined]
    await client.turn()
    (renewed,) = [flow for flow in client.all(Flow) if flow.handle is None]
    assert (renewed.next_incoming_id, renewed.incoming_window) == (8, 12)
    assert client.all(End) == []


async def test_row_4_credit_comes_late_and_in_portions() -> None:
    """First all of it, then as much as was settled, never more than the whole."""
    client = await Client(Strictness(credit=Credit(first=10, refill=4, delay_s=0.5))).open()
    await client.queue("orders")
    link = await client.sender(await client.session(), "orders")
    assert client.all(Attach) and client.all(Flow) == []
    assert (await client.until(Flow)).link_credit == 10
    for number in range(3):
        link.send(message(str(number)), b"%d" % number)
    await client.turn()
    assert len(client.all(Flow)) == 1
    link.send(message("4"), b"4")
    await client.turn()
    refilled = client.all(Flow)[1:]
    assert [(flow.delivery_count, flow.link_credit) for flow in refilled] == [(4, 10)]


async def test_row_4_credit_comes_back_for_every_send_however_it_ended() -> None:
    """Credit is spent with the first frame of a send. A client whose sends are refused without an answer, or that takes
    sends back, would wait for ever after a thousand of them."""
    client = await Client(Strictness(credit=Credit(first=10, refill=2, delay_s=0))).open()
    await client.queue("orders")
    session = await client.session()
    link = await client.sender(session, "orders")
    await client.until(Flow)
    for number in range(30):
        link.send(b"\x00garbage", b"%d" % number, settled=True)
        await client.turn()
        assert link.credit >= 8
    for number in range(30, 60):
        link.credit -= 1
        link.delivery_count += 1
        client.core.send_performative(session.channel, Transfer(link.handle, number, b"t", 0, aborted=True))
        await client.turn()
        assert link.credit >= 8


async def test_row_4_tokens_have_a_hundred_credits_and_no_size_limit() -> None:
    """The limit that is kept is another one: nobody's token has a megabyte."""
    client = await Client(Strictness(credit=Credit())).open()
    await client.sender(await client.session(), "$cbs")
    (attach,) = client.all(Attach)
    assert attach.max_message_size == 2**64 - 1
    assert [flow.link_credit for flow in client.all(Flow)] == [100]


@pytest.mark.parametrize("role", ["sender", "receiver"])
async def test_row_5_a_refusal_begins_with_a_bare_attach(role: str) -> None:
    """A client that reads termini, modes or sizes of it must not fall over their absence."""
    client = await Client(Strictness(bare_refusals=True)).open()
    session = await client.session()
    await (client.sender if role == "sender" else client.receiver)(session, "nowhere", name="l")
    (attach,), (detach,) = client.all(Attach), client.all(Detach)
    assert attach == Attach("l", 0, role == "sender")
    assert detach.error is not None and detach.error.condition == "amqp:not-found"


async def test_row_5_a_session_that_is_taken_is_refused_alike() -> None:
    """The refusal of a session comes from another place than that of an entity, and has the same form."""
    client = await Client(Strictness(bare_refusals=True, tracks_errors=True)).open()
    await client.queue("talks", requires_session=True)
    session = await client.session()
    await session_receiver(client, session, "first")
    await session_receiver(client, session, "second")
    attach, (detach,) = client.all(Attach)[-1], client.all(Detach)
    assert attach == Attach("second", 1, False)
    assert detach.error is not None and detach.error.condition == "com.microsoft:session-cannot-be-locked"
    assert re.search(TRACKED, detach.error.description or "") and detach.error.info == {}


async def session_receiver(client: Client, session: Session, name: str, session_id: str | None = "s") -> None:
    """Apply for a session of the queue `talks`; without an id for the next one."""
    source = Source(address="talks", filter={Symbol(SESSION_FILTER): session_id})
    session.new_receiver(name).attach(source=source, target=Target(address="client"))
    await client.turn()


async def test_row_6_a_second_pair_for_tokens_is_refused() -> None:
    """A second pair in another session is refused too; the first pair still works."""
    client = await Client(Strictness(token_max=10)).open()
    for number in range(2):
        session = await client.session()
        await client.sender(session, "$cbs", f"ask {number}")
        await client.receiver(session, "$cbs", name=f"hear {number}")
    errors = [detach.error for detach in client.all(Detach)]
    assert [error.condition for error in errors if error is not None] == ["amqp:not-allowed"] * 2
    assert [link.is_open for link in client.core.sessions[0].links] == [True, True]


async def put_tokens(client: Client, count: int, expires_s: float) -> list[Message]:
    """Put tokens for so many entities, and give the answers."""
    session = await client.session()
    ask = await client.sender(session, "$cbs", "ask")
    await client.receiver(session, "$cbs", credit=100, name="hear")
    for number in range(count):
        if client.namespace.queue(f"q{number}") is None:
            await client.queue(f"q{number}")
        audience = f"sb://contoso/q{number}"
        request = Message(
            properties=Properties(message_id=number, reply_to="client"),
            application_properties={
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "name": audience,
            },
            value=sas.sign(audience, "root", "key", int(expires_s)),
            has_value=True,
        )
        ask.send(request.encode(), b"%d" % number)
    await client.turn()
    return [Message.decode(payload) for _, frame, payload in client.said.frames if isinstance(frame, Transfer)]


async def test_row_6_one_token_too_many_is_refused() -> None:
    """The tokens that were taken stay good."""
    client = await Client(Strictness(token_max=4)).open()  # the SASL login counts as the first token
    answers = await put_tokens(client, 4, time.time() + 60)
    assert [answer.property("status-code") for answer in answers] == [202, 202, 202, 403]
    assert "maximum number of '4' tokens per connection" in answers[-1].property("status-description")


async def test_row_7_an_expired_token_detaches_by_force() -> None:
    """A client that waits for unauthorized-access would not renew its token on Azure."""
    client = Client(Strictness(asks_for_renewal=True))
    client.core = Connection(ConnectionSettings("client"), None)
    await client.open()
    await client.queue("q0")
    assert (await put_tokens(client, 1, time.time() + 2))[0].property("status-code") == 202
    await client.sender(client.core.sessions[0], "q0")
    detach = await client.until(Detach)
    assert detach.error is not None and detach.error.condition == "amqp:link:detach-forced"
    assert "Code: RenewToken" in (detach.error.description or "")


async def test_row_8_a_silent_sender_is_detached() -> None:
    """A receiver may wait for ever; its connection is not idle."""
    client = await Client(Strictness(idle=Idle(sender_s=1.0, connection_s=1.0))).open()
    await client.queue("orders")
    session = await client.session()
    await client.sender(session, "orders")
    receiver = await client.receiver(session, "orders")
    detach = await client.until(Detach)
    assert detach.error is not None and detach.error.condition == "amqp:link:detach-forced"
    assert "AmqpMessagePublisher.IdleTimerExpired" in (detach.error.description or "")
    await asyncio.sleep(2.0)
    await client.turn()
    assert receiver.is_open and client.all(Close) == []


async def test_row_8_a_client_that_waits_for_a_session_is_not_idle() -> None:
    """The client's link is attached only when there is a session, which may take as long as it likes."""
    client = await Client(Strictness(idle=Idle(sender_s=1.0, connection_s=1.0))).open()
    await client.queue("talks", requires_session=True)
    await session_receiver(client, await client.session(), "waits", None)
    await asyncio.sleep(2.5)
    await client.turn()
    assert client.all(Close) == [] and client.all(Detach) == []


async def test_row_8_a_wait_in_an_ended_session_is_no_activity() -> None:
    """The broker ended the session for its limit of links; a client that never answers is idle all the same."""
    strictness = Strictness(idle=Idle(sender_s=1.0, connection_s=1.0), begin=BeginNumbers(link_max=1))
    client = await Client(strictness).open()
    await client.queue("talks", requires_session=True)
    session = await client.session()
    await session_receiver(client, session, "waits", None)
    session.new_receiver("too many").attach(source=Source(address="talks"), target=Target(address="client"))
    client.peer.data_received(client.core.data_to_send())
    async with asyncio.timeout(20):
        while not client.all(Close):
            await asyncio.sleep(0.01)
            client.hear()  # the client reads, and sends nothing
    (close,) = client.all(Close)
    assert close.error is not None and close.error.condition == "amqp:connection:forced"


async def test_row_8_a_connection_without_links_is_closed_with_all_it_has() -> None:
    """Detach, end and close each say why; the links for tokens keep no connection alive."""
    client = await Client(Strictness(idle=Idle(sender_s=60, connection_s=1.0))).open()
    await client.sender(await client.session(), "$cbs")
    await client.until(Close)
    for kind in (Detach, End, Close):
        (said,) = client.all(kind)
        assert said.error is not None and said.error.condition == "amqp:connection:forced", kind  # type: ignore[attr-defined]


async def test_row_9_an_idle_time_out_below_five_seconds_is_refused() -> None:
    client = await Client(Strictness(heartbeats=Heartbeats()), idle_time_out_ms=4999).open()
    (close,) = client.all(Close)
    assert close.error is not None and close.error.condition == "amqp:not-allowed"
    assert (await Client(Strictness(heartbeats=Heartbeats()), idle_time_out_ms=5000).open()).core.is_open


def test_row_9_signs_of_life_come_at_seven_eighths() -> None:
    """A client that hangs up after half of its time-out would do so on Azure."""
    server = Connection(ConnectionSettings("s", sign_of_life_share=Heartbeats().share), None)
    client = Connection(ConnectionSettings("c", idle_time_out_ms=8000), None)
    for end in (client, server):
        end.open()
    client.receive_data(server.data_to_send(), 0.0)
    server.receive_data(client.data_to_send(), 0.0)
    server.data_to_send()
    assert server.next_timer() == 7.0
    server.handle_timer(6.9)
    assert not server.has_output
    server.handle_timer(7.0)
    assert server.data_to_send() == EMPTY_FRAME


async def test_row_10_errors_end_with_what_support_asks_for() -> None:
    """On refused links, refused messages, answers of requests, and errors of the protocol itself."""
    client = await Client(Strictness(tracks_errors=True)).open()
    await client.queue("orders")
    session = await client.session()
    await client.sender(session, "nowhere", "refused")
    link = await client.sender(session, "orders")
    link.send(b"no message", b"1")
    await client.turn()
    (detach,), (disposition,) = client.all(Detach), client.all(Disposition)
    assert isinstance(disposition.state, Rejected)
    client.peer.data_received(bytes(8))
    await client.turn()
    (close,) = client.all(Close)
    for error in (detach.error, disposition.state.error, close.error):
        assert error is not None and re.search(TRACKED, error.description or ""), error
        assert error.info == {}


async def test_row_10_answers_of_requests_are_tracked_too() -> None:
    client = Client(Strictness(tracks_errors=True, token_max=1))
    await client.open()
    answers = await put_tokens(client, 1, time.time() + 60)
    assert "TrackingId:" in answers[0].property("status-description")


def batch(envelope: Message, *messages: Message) -> bytes:
    return envelope.encode() + Message(data=[each.encode() for each in messages]).encode()


FIRST = Message(
    annotations={Symbol("x-opt-partition-key"): "s"},
    properties=Properties(message_id="1", group_id="s"),
    data=[b"x"],
)


@pytest.mark.parametrize(
    ("envelope", "lacking"),
    [
        (Message(), "message-id, group-id, x-opt-partition-key"),
        (Message(properties=Properties(message_id="1")), "group-id, x-opt-partition-key"),
        (Message(properties=Properties(message_id="1", group_id="s")), "x-opt-partition-key"),
        (Message(annotations=FIRST.annotations, properties=Properties(message_id="2", group_id="s")), "message-id"),
        (Message(annotations=FIRST.annotations, properties=Properties(message_id=b"1", group_id="s")), None),
    ],
)
async def test_row_11_batches_need_the_envelope_of_their_first_message(envelope: Message, lacking: str | None) -> None:
    """Only where there are sessions and partitions; the error names all that is missing."""
    client = await Client(Strictness(checks_envelopes=True)).open()
    await client.queue("both", requires_session=True, enable_partitioning=True)
    await client.queue("plain")
    session = await client.session()
    for name in ("both", "plain"):
        link = await client.sender(session, name, name)
        link.send(batch(envelope, FIRST), b"1", message_format=BATCH_FORMAT)
        await client.turn()
    strict, plain = [disposition.state for disposition in client.all(Disposition)]
    if lacking is None:
        check_envelope(batch(envelope, FIRST))
    else:
        assert isinstance(strict, Rejected) and strict.error is not None
        assert f"lacks the {lacking} of its first message" in (strict.error.description or "")
    assert not isinstance(plain, Rejected)


async def test_row_12_a_batch_has_less_room_than_a_message() -> None:
    """The limit is announced, and kept for batches only."""
    client = await Client(Strictness(batch_size_max=4096)).open()
    await client.queue("orders")
    link = await client.sender(await client.session(), "orders")
    (attach,) = client.all(Attach)
    assert attach.properties == {"com.microsoft:max-message-batch-size": 4096}
    assert attach.max_message_size == 1024 * 1024
    large = Message(properties=Properties(message_id="l"), data=[bytes(6000)]).encode()
    link.send(large, b"1")
    await client.turn()
    link.send(encode_batch([large]), b"2", message_format=BATCH_FORMAT)
    await client.turn()
    one, many = [disposition.state for disposition in client.all(Disposition)]
    assert not isinstance(one, Rejected)
    assert isinstance(many, Rejected) and many.error is not None
    assert many.error.condition == "amqp:link:message-size-exceeded"


async def test_row_13_ranges_are_answered_one_by_one() -> None:
    """Sends that come in one read, and settlements of a range."""
    client = await Client(Strictness(answers_one_by_one=True)).open()
    await client.queue("orders")
    session = await client.session()
    await flood(client, session, 3)
    assert [(said.first, said.last or said.first) for said in client.all(Disposition)] == [(0, 0), (1, 1), (2, 2)]
    receiver = await client.receiver(session, "orders", credit=3)
    assert len(client.all(Transfer)) == 3
    receiver.settle(0, 2, ACCEPTED_BYTES, 3, settled=False)
    await client.turn()
    assert [(said.first, said.last or said.first) for said in client.all(Disposition)[3:]] == [(0, 0), (1, 1), (2, 2)]


async def test_row_14_too_many_unsettled_deliveries_detach_the_receiver() -> None:
    """Settled deliveries do not count towards the limit."""
    client = await Client(Strictness(unsettled_max=3)).open()
    await client.queue("orders")
    session = await client.session()
    await flood(client, session, 8)
    receiver = await client.receiver(session, "orders", credit=3)
    receiver.settle(0, 1, ACCEPTED_BYTES, 2, settled=False)
    receiver.grant(2)
    await client.turn()
    assert len(client.all(Transfer)) == 5 and client.all(Detach) == []
    receiver.grant(1)
    detach = await client.until(Detach)
    assert detach.error is not None and detach.error.condition == "amqp:link:detach-forced"
    assert "more than 3 unsettled" in (detach.error.description or "")


async def test_row_14_what_management_settled_is_not_unsettled() -> None:
    """The lock is gone, whichever way; a client that settles by lock token keeps its link for ever."""
    client = await Client(Strictness(unsettled_max=3)).open()
    await client.queue("orders")
    session = await client.session()
    await flood(client, session, 9)
    ask = await client.sender(session, "orders/$management", "ask")
    await client.receiver(session, "orders/$management", credit=10, name="hear")
    receiver = await client.receiver(session, "orders", credit=3)
    for tags in (slice(0, 2), slice(2, 4)):
        tokens = [UUID(bytes_le=token) for token in delivered(client)[tags]]
        request = Message(
            properties=Properties(message_id="1", reply_to="client"),
            application_properties={"operation": "com.microsoft:update-disposition"},
            value={"disposition-status": "completed", "lock-tokens": Array(tokens, 0x98)},
            has_value=True,
        )
        ask.send(request.encode(), b"1")
        await client.turn()
        receiver.grant(2)
        await client.turn()
    assert len(delivered(client)) == 7 and client.all(Detach) == []
    assert client.namespace.catalog.queues["orders"].active_count == 5
    receiver.grant(1)
    detach = await client.until(Detach)
    assert detach.error is not None and "more than 3 unsettled" in (detach.error.description or "")


def delivered(client: Client) -> list[bytes]:
    """The lock tokens of what came from the queue."""
    tags = [frame.delivery_tag for frame in client.all(Transfer)]
    return [tag for tag in tags if tag is not None and len(tag) == 16]


async def test_late_words_on_ended_links_are_ignored_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """SDKs detach twice, and dispose of deliveries whose link is gone; the lock then goes on."""
    client = await Client(LENIENT).open()
    await client.queue("orders")
    session = await client.session()
    await flood(client, session, 1)
    receiver = await client.receiver(session, "orders", credit=1)
    receiver.detach()
    receiver.settle(0, 0, ACCEPTED_BYTES, 1)
    for performative in (Detach(receiver.handle), Flow(0, 10, 0, 10, handle=receiver.handle)):
        session.send_performative(performative)
    await client.turn()
    session.end()
    for late in (Detach(receiver.handle), Flow(0, 10, 0, 10), Disposition(True, 0, settled=True)):
        client.core.send_performative(session.channel, late)
    await client.turn()
    assert client.core.is_open and not client.all_events(ConnectionFailed)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    queue = client.namespace.catalog.queues["orders"]
    assert (queue.active_count, len(queue.main.locks)) == (1, 1)
