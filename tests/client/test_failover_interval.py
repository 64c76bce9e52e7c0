"""Every way of losing the primary with a failover interval: errors until it is over, the backlog from then on."""

from __future__ import annotations

import pytest

from tests.client.losses import LOSSES, Loss
from tests.client.outage import Application, outage
from tests.client.world import World

pytestmark = pytest.mark.slow
INTERVAL_S = 3.0


async def fails_for_three_seconds(application: Application) -> None:
    await application.fails_until(INTERVAL_S)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
async def test_errors_reach_the_caller_until_the_interval_is_over(world: World, loss: Loss) -> None:
    """A short hiccup is the application's to handle; who is under way when the interval ends is stored all the same."""
    async with outage(world, loss, failover_interval=INTERVAL_S) as course:
        await course.each(fails_for_three_seconds)
        await course.heal()
        await course.each(Application.comes_back)
    verdict, doubtful = await course.judge()
    assert (verdict.lost, verdict.misrouted, verdict.altered, verdict.unexpected) == ((), (), (), ()), str(verdict)
    assert set(verdict.duplicated) <= doubtful, str(verdict)
