"""Tokens for entities that exist, and for those that do not (`$cbs`)."""

from __future__ import annotations

import time

import pytest

from pairbus.amqp.link import SenderLink
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import Transfer
from pairbus.auth.sas import sign
from pairbus.broker.description import SubscriptionDescription, TopicDescription
from pairbus.broker.strict import LENIENT
from tests.broker.strict_world import Client

EXISTING = [
    "sb://h/",
    "sb://h:5671/orders",
    "sb://h/ORDERS/$management",
    "sb://h/orders/$DeadLetterQueue",
    "sb://h/orders/$Transfer/$DeadLetterQueue/$management",
    "amqps://h/events",
    "sb://h/events/Subscriptions/all",
    "sb://h/events/subscriptions/all/$deadletterqueue",
    "h/orders",
    "sb://h/%6frders",
    "sb://h/$cbs",
]
MISSING = [
    "sb://h/Nowhere",
    "sb://h/nowhere/$DeadLetterQueue",
    "sb://h/events/Subscriptions/none",
    "sb://h/events/Subscriptions",
]


class TokenClient(Client):
    """A client that puts tokens."""

    ask: SenderLink

    async def start(self) -> TokenClient:
        await self.open()
        session = await self.session()
        self.ask = await self.sender(session, "$cbs", "ask")
        await self.receiver(session, "$cbs", credit=100, name="hear")
        return self

    async def put(self, audience: str, key: str = "key") -> Message:
        """Put a token of the whole namespace for an audience, and give the answer."""
        request = Message(
            properties=Properties(message_id=audience),
            application_properties={"operation": "put-token", "name": audience, "type": "jwt"},
            value=sign("sb://h/", "root", key, expires_s=int(time.time()) + 60),
            has_value=True,
        )
        self.ask.send(request.encode(), f"{time.monotonic_ns()}".encode())
        await self.turn()
        answers = [payload for _, frame, payload in self.said.frames if isinstance(frame, Transfer)]
        return Message.decode(answers[-1])


@pytest.mark.parametrize("audience", EXISTING + MISSING)
async def test_token_is_refused_when_its_entity_does_not_exist(audience: str) -> None:
    """As on Azure, with 404. Only a client with the key learns what exists."""
    client = await TokenClient(LENIENT).start()
    await client.queue("orders")
    await client.namespace.create(TopicDescription("events"))
    await client.namespace.create(SubscriptionDescription("events", "all"))
    answer, wrong = await client.put(audience), await client.put(audience, key="wrong")
    assert wrong.property("status-code") == 401
    assert answer.property("status-code") == (404 if audience in MISSING else 202)
    assert len(client.peer.grants) == (1 if audience in MISSING else 2), "beside that of the login"


async def test_refused_token_has_the_text_of_a_refused_link() -> None:
    """The JavaScript SDK recognises a missing entity by it; users know the address as they wrote it."""
    client = await TokenClient(LENIENT, hostname="myns").start()
    answer = await client.put("sb://elsewhere:5671/Nowhere")
    assert answer.property("status-description") == "The messaging entity 'sb://myns/Nowhere' could not be found."


async def test_token_is_taken_as_soon_as_its_entity_exists() -> None:
    """On the same connection: a client that waits for a queue tries again."""
    client = await TokenClient(LENIENT).start()
    assert (await client.put("sb://h/orders")).property("status-code") == 404
    await client.queue("orders")
    assert (await client.put("sb://h/orders")).property("status-code") == 202
