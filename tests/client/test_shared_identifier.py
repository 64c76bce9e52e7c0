"""Senders with the same `client_identifier` share one link: closing one of them costs the others nothing."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.pairing.events import Paired
from tests.client.messages import id_of
from tests.client.world import Client, Stage, message, until
from tests.scripted import Delay
from tests.scripted.script import Accept
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow

NAME = "orders-service"


def attaches(stage: Stage) -> int:
    return sum(occasion.step == "attach" and occasion.path == "orders" for occasion in stage.primary.steps)


def assert_quiet(client: Client, stage: Stage, ids: list[str]) -> None:
    """Assert that each message was transmitted once, on one link of one connection, without an event."""
    assert [id_of(received.payload) for received in stage.primary.received_by("orders")] == ids
    assert (attaches(stage), stage.primary.open_connections) == (1, 1)
    assert [type(event) for event in client.events] == [Paired]


async def test_closing_a_sender_leaves_others_with_its_identifier_alone(stage: Stage, flavour: Flavour) -> None:
    """Threads that make a sender for each message, as with the plain SDK, must not make each other's outcomes unknown:
    the messages would be sent again, and stored twice. The last sender takes the link with it."""
    client = stage.client(flavour)
    first, second = client.sender("orders", client_identifier=NAME), client.sender("Orders", client_identifier=NAME)
    await first.send(message(message_id="1"))
    stage.primary.on("transfer", Delay(0.5, Accept()), path="orders", times=1)
    sending = asyncio.create_task(second.send(message(message_id="2")))
    await until(lambda: len(stage.primary.received_by("orders")) == 2, "transmitted, and not answered")
    await first.close()
    await first.close()
    await sending
    await second.send(message(message_id="3"))
    assert_quiet(client, stage, ["1", "2", "3"])
    await second.close()
    await until(lambda: stage.primary.link_count("orders") == 0, "the link is closed")


async def test_closing_a_sender_ends_no_opening_for_which_another_waits(stage: Stage, flavour: Flavour) -> None:
    """The other sender would count a failure of the primary, and retry on a new connection."""
    client = stage.client(flavour)
    first, second = client.sender("orders", client_identifier=NAME), client.sender("orders", client_identifier=NAME)
    await client.pair()
    stage.primary.on("attach", Delay(0.5, Accept()), path="orders", times=1)
    sending = asyncio.create_task(second.send(message(message_id="1")))
    await until(lambda: attaches(stage) == 1, "the link is being opened")
    await first.close()
    await sending
    assert_quiet(client, stage, ["1"])


async def test_closing_a_sender_leaves_its_sends_in_flight_alone(stage: Stage, flavour: Flavour) -> None:
    """As for senders without an identifier: the outcome of a send is never made unknown by this client."""
    client = stage.client(flavour)
    sender = client.sender("orders", client_identifier=NAME)
    await sender.send(message(message_id="1"))
    stage.primary.on("transfer", Delay(0.5, Accept()), path="orders", times=1)
    sending = asyncio.create_task(sender.send(message(message_id="2")))
    await until(lambda: len(stage.primary.received_by("orders")) == 2, "transmitted, and not answered")
    await sender.close()
    await sending
    assert_quiet(client, stage, ["1", "2"])
    await until(lambda: stage.primary.link_count("orders") == 0, "the link is closed when the send has ended")
