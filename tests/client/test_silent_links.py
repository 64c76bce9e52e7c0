"""Links and connections whose other end the primary has lost: used by no later send, as soon as a send has shown it."""

from __future__ import annotations

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.events import FailedOver
from pairbus.pairing.failover import State
from pairbus.transport import times
from pairbus.transport.links import patience
from tests.client.world import Stage, message
from tests.scripted import Silent
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow


def attaches(stage: Stage, path: str) -> int:
    """Return how often a link to the entity was attached."""
    return sum(occasion.step == "attach" and occasion.path == path for occasion in stage.primary.steps)


async def test_connection_on_which_no_link_opens_costs_no_failover(stage: Stage, flavour: Flavour) -> None:
    """The primary works on every new connection, so pings, which open one, are accepted: with the old connection in use
    the entity would fail over and come back for ever."""
    client = stage.client(flavour, failover_interval=10, attempt_timeout=0.5, connect_timeout=0.5)
    sender = client.sender("orders")
    await sender.send(message())
    old = stage.primary.steps[-1].connection
    for step in ("transfer", "attach"):
        stage.primary.on(step, Silent(), path="orders", when=lambda occasion: occasion.connection == old)
    for _ in ("the link is silent", "no other one opens"):
        assert isinstance(await sender.error(message(), timeout=5), OperationTimeoutError)
    await sender.send(message(), timeout=5)
    assert client.state("orders") is State.HEALTHY and not client.told(FailedOver)
    assert stage.primary.steps[-1].connection != old


async def test_plain_client_replaces_a_link_that_left_a_send_unanswered(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another place a send waits for the primary until its time is over. The next one must not do so again."""
    # Shorter than the second look of a late timer, which leaves out the time before it: a busy machine has late timers.
    monkeypatch.setattr(patience, "LINK_SILENCE_S", times.AGAIN_S - 0.01)
    client = stage.client(flavour)
    await client.pair()
    await client.clear_pairing()
    sender = client.sender("orders")
    await sender.send(message())
    stage.primary.on("transfer", Silent(), path="orders", when=lambda _: attaches(stage, "orders") == 1)
    assert isinstance(await sender.error(message(), timeout=0.6), OperationTimeoutError)
    await sender.send(message())
    assert attaches(stage, "orders") == 2
