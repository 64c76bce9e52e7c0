"""A silent primary and a failover interval: errors until it is over, the backlog within 5 s from then on."""

from __future__ import annotations

import pytest

from tests.client.losses import SILENT, Loss, deep_but
from tests.client.outage import diverted_after
from tests.client.world import World

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("loss", deep_but(SILENT, "broker stopped", "transfers stalled"))
async def test_time_outs_reach_the_caller_until_the_interval_is_over(world: World, loss: Loss) -> None:
    """A send that is under way when the interval ends is stored within the same call."""
    await diverted_after(world, loss, 3.0)
