"""Frames as SDKs for other languages write them, and answers as these SDKs read them."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.amqp.link import ReceiverLink
from pairbus.amqp.message import Message
from pairbus.amqp.performatives import Attach, Detach, Flow, Source, Target, Transfer
from pairbus.amqp.types import Described, Symbol, ULong
from pairbus.broker.strict import LENIENT
from pairbus.broker.wire.session_links import SESSION_FILTER
from tests.broker.strict_world import Client, message

GO_SESSION_FILTER = ULong(0x137000000C)


async def apply(client: Client, asked: Any) -> Attach:
    """Apply for a session of a queue that has messages in the session `a`; give the broker's attach."""
    await client.queue("talks", requires_session=True)
    session = await client.session()
    (await client.sender(session, "talks")).send(message("one", group_id="a"), b"1")
    await client.turn()
    source = Source(address="talks", filter={Symbol(SESSION_FILTER): asked})
    session.new_receiver("from").attach(source=source, target=Target(address="client"))
    await client.turn()
    return client.all(Attach)[-1]


@pytest.mark.parametrize("asked", ["a", None], ids=["named", "next"])
async def test_go_sdk_accepts_a_session_by_a_described_filter(asked: str | None) -> None:
    """It decodes the values of a filter as described types only, so the answer has the descriptor of the request."""
    attach = await apply(await Client(LENIENT).open(), Described(GO_SESSION_FILTER, asked))
    assert attach.source is not None and attach.source.filter is not None
    assert attach.source.filter[SESSION_FILTER] == Described(GO_SESSION_FILTER, "a")


@pytest.mark.parametrize("asked", ["a", None], ids=["named", "next"])
async def test_plain_session_filter_has_a_plain_answer(asked: str | None) -> None:
    """The SDKs for Python and JavaScript expect text."""
    attach = await apply(await Client(LENIENT).open(), asked)
    assert attach.source is not None and attach.source.filter is not None
    assert attach.source.filter[SESSION_FILTER] == "a"


async def test_described_session_id_that_is_no_text_is_refused() -> None:
    """As a plain one is."""
    client = await Client(LENIENT).open()
    await apply(client, Described(GO_SESSION_FILTER, ULong(1)))
    (detach,) = client.all(Detach)
    assert detach.error is not None and detach.error.condition == "com.microsoft:argument-error"


async def with_messages(client: Client, count: int, size: int = 1, **settings: Any) -> ReceiverLink:
    """A receiver without credit on a queue with messages."""
    await client.queue("orders", **settings)
    session = await client.session()
    sender = await client.sender(session, "orders")
    for number in range(count):
        sender.send(Message(data=[b"x" * size]).encode(), b"%d" % number)
    return await client.receiver(session, "orders")


def drained(client: Client) -> list[Flow]:
    return [flow for flow in client.all(Flow) if flow.drain]


async def test_drain_is_answered_when_the_credit_is_used_up() -> None:
    """rhea tells the JavaScript SDK `receiver_drained` only then; otherwise the SDK waits and closes its link."""
    client = await Client(LENIENT).open()
    receiver = await with_messages(client, 3)
    receiver.grant(2, drain=True)
    await client.turn()
    (flow,) = drained(client)
    assert (flow.link_credit, flow.delivery_count) == (0, 2)
    assert [type(frame) for _, frame, _ in client.said.frames[-3:]] == [Transfer, Transfer, Flow]


async def test_drain_that_crosses_the_last_message_is_answered() -> None:
    """The receiver still counts on credit that a message on its way to it has used."""
    client = await Client(LENIENT).open()
    receiver = await with_messages(client, 3)
    receiver.grant(1)
    client.peer.data_received(client.core.data_to_send())
    receiver.grant(1, drain=True)
    await client.turn()
    (flow,) = drained(client)
    assert (flow.link_credit, flow.delivery_count) == (0, 1)


async def test_drain_without_credit_is_answered_at_once() -> None:
    """The Python SDK sends it before it closes its receiver."""
    client = await Client(LENIENT).open()
    receiver = await with_messages(client, 1)
    receiver.grant(0, drain=True)
    await client.turn()
    (flow,) = drained(client)
    assert (flow.link_credit, flow.delivery_count) == (0, 0)


async def test_drain_is_answered_behind_messages_that_wait_for_the_window() -> None:
    """An answer before them would say that they do not come."""
    client = await Client(LENIENT, incoming_window=2, max_frame_size=512).open()
    receiver = await with_messages(client, 1, 2000)
    receiver.grant(1, drain=True)
    await client.turn()
    frames = [frame for _, frame, _ in client.said.frames if isinstance(frame, Transfer | Flow)][-2:]
    assert isinstance(frames[0], Transfer) and not frames[0].more
    assert isinstance(frames[1], Flow) and frames[1].drain


@pytest.mark.parametrize(
    "settings",
    [{"forward_to": "Loop"}, {"forward_dead_lettered_to": "loop"}],
)
async def test_queue_that_forwards_to_itself_keeps_its_messages(settings: dict[str, Any]) -> None:
    """Microsoft's live tests create one; forwarding in a circle would end in the dead-letter queue."""
    client = await Client(LENIENT).open()
    await client.queue("loop", **settings)
    session = await client.session()
    (await client.sender(session, "loop")).send(message("one"), b"1")
    await client.receiver(session, "loop", credit=1)
    assert len(client.all(Transfer)) == 1


async def test_queue_with_sessions_that_forwards_keeps_its_messages() -> None:
    """The service accepts the setting at creation."""
    client = await Client(LENIENT).open()
    await client.queue("other")
    await client.queue("talks", requires_session=True, forward_to="other")
    session = await client.session()
    (await client.sender(session, "talks")).send(message("one", group_id="a"), b"1")
    await client.turn()
    source = Source(address="talks", filter={Symbol(SESSION_FILTER): "a"})
    session.new_receiver("from").attach(source=source, target=Target(address="client"))
    await client.turn()
    assert client.all(Detach) == []
    assert client.namespace.catalog.queues["other"].active_count == 0
