"""The ways of losing the primary that only a time-out shows: the first send after the loss is stored within 5 s.

Here outcomes are unknown: the primary may have stored what nobody heard of.
"""

from __future__ import annotations

import pytest

from tests.client.losses import SILENT, Loss
from tests.client.outage import Application, diverted_at_once, outage
from tests.client.world import World

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("loss", SILENT, ids=str)
async def test_silence_costs_the_first_send_five_seconds_and_no_message(world: World, loss: Loss) -> None:
    """A peer that says nothing must not hold its callers for the minute that they would wait."""
    await diverted_at_once(world, loss)


STORED = [loss for loss in SILENT if loss.name in ("answers dropped", "transfers stalled", "broker stopped")]


@pytest.mark.parametrize("loss", STORED, ids=str)
async def test_no_message_is_there_twice_where_the_destination_detects_duplicates(world: World, loss: Loss) -> None:
    """In these the primary has the message and nobody knows it; the backlog's copy has the same message id."""
    async with outage(world, loss, {"requires_duplicate_detection": True}) as course:
        await course.each(Application.diverts_at_once)
        await course.heal()
        await course.each(Application.comes_back)
    verdict, doubtful = await course.judge()
    assert len(doubtful) == 2, "one doubtful message of each client"
    assert verdict.ok, str(verdict)
