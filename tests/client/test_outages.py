"""The ways of losing the primary that show themselves at once.

The numbers are the promise: with a failover interval of 0 the first send after the loss is in the backlog within 2 s of
its call, with another one whoever is under way when it ends; senders are back one ping interval, one ping time-out and
2 s after the heal, at the latest; other entities are not touched; nothing is lost, misrouted or altered.
"""

from __future__ import annotations

import pytest

from tests.client.losses import LOUD, Loss, deep_but
from tests.client.outage import diverted_after, diverted_at_once
from tests.client.world import World

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("loss", LOUD, ids=str)
async def test_a_loss_costs_the_first_send_a_moment_and_no_message(world: World, loss: Loss) -> None:
    """The promise of send availability."""
    await diverted_at_once(world, loss)


@pytest.mark.parametrize("loss", deep_but(LOUD, "broker killed", "links detached"))
async def test_errors_reach_the_caller_until_the_interval_is_over(world: World, loss: Loss) -> None:
    """A short hiccup is the application's to handle; who is under way when the interval ends is stored all the same."""
    await diverted_after(world, loss, 3.0)
