"""Every way of losing the primary with a failover interval of 0: where sends go, how soon, and when they come back.

The numbers are the promise: the first send after the loss is in the backlog within 2 s of its call, within 5 s where
the peer is silent; senders are back one ping interval, one ping time-out and 2 s after the heal, at the latest.
"""

from __future__ import annotations

import pytest

from tests.client.losses import LOSSES, Loss
from tests.client.outage import Application, outage
from tests.client.world import World

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("loss", LOSSES, ids=str)
async def test_a_loss_costs_the_first_send_a_moment_and_no_message(world: World, loss: Loss) -> None:
    """The promise of send availability, kept in all of these ways of failing."""
    async with outage(world, loss) as course:
        await course.each(Application.diverts_at_once)
        await course.heal()
        await course.each(Application.comes_back)
    verdict, doubtful = await course.judge()
    assert (verdict.lost, verdict.misrouted, verdict.altered, verdict.unexpected) == ((), (), (), ()), str(verdict)
    assert set(verdict.duplicated) <= doubtful, str(verdict)


UNKNOWN = [loss for loss in LOSSES if loss.name in ("answers dropped", "transfers stalled", "broker stopped")]


@pytest.mark.parametrize("loss", UNKNOWN, ids=str)
async def test_no_message_is_there_twice_where_the_destination_detects_duplicates(world: World, loss: Loss) -> None:
    """In these the primary has the message and nobody knows it; the backlog's copy has the same message id."""
    async with outage(world, loss, {"requires_duplicate_detection": True}) as course:
        await course.each(Application.diverts_at_once)
        await course.heal()
        await course.each(Application.comes_back)
    verdict, doubtful = await course.judge()
    assert len(doubtful) == 2, "one of each client"
    assert verdict.ok, str(verdict)
