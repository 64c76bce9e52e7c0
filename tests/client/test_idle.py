"""Links and connections that the service ended for idling: opened again within the call, without any error."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.pairing.events import Paired
from pairbus.pairing.failover import State
from tests.client.messages import id_of
from tests.client.world import Client, Stage, message, until
from tests.scripted import Reject
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow

SENDERS = 20


def connections(stage: Stage) -> set[int]:
    return {step.connection for step in stage.primary.steps if step.step == "transfer"}


async def end_for_idling(stage: Stage, what: str) -> None:
    if what == "links":
        stage.primary.close_idle_links()
    elif what == "links for tokens":
        stage.primary.close_idle_links("$cbs")
    elif what == "both":
        stage.primary.close_idle_links("$cbs")
        stage.primary.close_idle_links()
    else:
        stage.primary.close_connections()


def assert_quiet(client: Client, paths: list[str]) -> None:
    assert [type(event) for event in client.events] == [Paired]
    assert {client.state(path) for path in paths} == {State.HEALTHY}


@pytest.mark.parametrize("what", ["links", "links for tokens", "both", "connections"])
async def test_many_idle_senders_begin_again_at_once(stage: Stage, flavour: Flavour, what: str) -> None:
    """All links were ended together; a link that was detached comes back on the connection that it had."""
    client = stage.client(flavour)
    paths = [f"orders-{number}" for number in range(SENDERS)]
    senders = [client.sender(path) for path in paths]
    for number in range(3):
        await asyncio.gather(*(sender.send(message(message_id=str(number))) for sender in senders))
        await end_for_idling(stage, what)
    for path in paths:
        assert [id_of(payload) for payload in stage.primary.stored(path)] == ["0", "1", "2"]
    assert len(connections(stage)) == (3 if what == "connections" else 1)
    assert_quiet(client, paths)
    assert stage.secondary.received == []


async def test_a_send_that_crosses_the_detach_is_not_repeated_as_a_failure(stage: Stage, flavour: Flavour) -> None:
    """The service detaches for idling while a burst of sends is on its way: each is stored, none is diverted."""
    client = stage.client(flavour)
    sender = client.sender("orders")
    await sender.send(message(message_id="first"))
    for number in range(5):
        sends = [asyncio.create_task(sender.send(message(message_id=f"{number}-{one}"))) for one in range(20)]
        await asyncio.sleep(0)
        stage.primary.close_idle_links("orders")
        await asyncio.gather(*sends)
    stored = {id_of(payload) for payload in stage.primary.stored("orders")}
    assert stored == {"first", *(f"{number}-{one}" for number in range(5) for one in range(20))}
    assert_quiet(client, ["orders"])


async def test_an_idle_link_of_a_backlog_queue_stays_in_rotation(stage: Stage, flavour: Flavour) -> None:
    """Between two outages the backlog is idle for days: the first message of the next one opens it again."""
    client = stage.client(flavour, ping_primary_interval=60)
    sender = client.sender("orders")
    await sender.send(message())
    stage.primary.on("transfer", Reject(), path="orders")
    await sender.send(message())
    for _ in range(2):
        for what in ("links", "connections"):
            if what == "links":
                assert stage.secondary.close_idle_links()
            else:
                stage.secondary.close_connections()
            await sender.send(message())
    await until(lambda: len(stage.in_backlog()) == 5, "all are stored")
    assert "backlog=2/2" in repr(client.client)
