"""Silent peers are left, however short the time-outs and however rare the sends; slow ones never are."""

from __future__ import annotations

from typing import Literal

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.failover import State
from tests.client.both import both_flavours
from tests.client.silent_peers import SILENCES, Case, How, campaign, cases, silent_queue
from tests.client.world import World, message
from tests.limits import slowness
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow

WAYS = [(how, has_link) for how in SILENCES for has_link in (False, True)]
HARDEST = [
    *(Case(how, 1.0, "sparse", has_link, "primary") for how, has_link in WAYS),
    *(Case(how, 1.0, "dense", has_link, "backlog") for how, has_link in WAYS),
]


async def test_silent_peers_are_left_with_one_second_and_few_sends() -> None:
    """Nobody else's send shows the silence, and each send ends before a connection's own limits do."""
    assert await campaign(HARDEST) == []


async def test_slow_peers_are_not_left_with_any_time_out() -> None:
    """Their connections take longer to open than the shortest time-out: each step of the opening is heard."""
    assert await campaign(cases(["slow"])) == []


@pytest.mark.parametrize("step", ["attach", "transfer"])
@pytest.mark.parametrize("timeout_s", [1.0, 2.0])
async def test_silent_backlog_queue_costs_a_send_or_two(timeout_s: float, step: Literal["attach", "transfer"]) -> None:
    assert await silent_queue(timeout_s, step) < 3 * timeout_s * slowness()


@pytest.mark.deep
@pytest.mark.parametrize("how", SILENCES)
async def test_silent_peers_are_left_with_any_time_out_and_traffic(how: How) -> None:
    assert await campaign(cases([how])) == []


@both_flavours
async def test_one_send_of_one_second_shows_a_silent_primary(world: World, flavour: Flavour) -> None:
    """It is the first send of its client, and nobody sends beside it."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour, failover_interval=1)
    nemesis.black_hole()
    sender = client.sender(queue)
    assert isinstance(await sender.error(message(), timeout=1.0), OperationTimeoutError)
    await client.until_state(queue, State.FAILED_OVER, 3.0)
    await sender.send(message(), timeout=5.0)
    assert world.in_backlog() == 1
