"""Sizes that a page must bear: a body of 100 MB, a queue of a million messages, a thousand entities."""

from __future__ import annotations

import asyncio
import time

import pytest

from pairbus.broker.entities.draft import Draft
from pairbus.explorer import encoded, send
from tests.dashboard.world import API, CHANGING, world

ORDERS = "namespaces/contoso"
BODY = 100_000_000
MILLION = 1_000_000


@pytest.mark.slow
async def test_body_of_100_mb_is_cut_in_views_only() -> None:
    async with world() as there:
        await send(there.carrier, "large", [encoded({"body": "x" * BODY})])
        listed = await there.get(f"{ORDERS}/messages?path=large")
        assert "body" not in listed["messages"][0]
        shown = await there.get(f"{ORDERS}/message?path=large&number=1")
        assert shown["is_cut"] and len(shown["body"]) < 100_000
        async with there.session.get(f"{there.url}{API}{ORDERS}/body?path=large&number=1", headers=CHANGING) as answer:
            assert answer.headers["Content-Disposition"].startswith("attachment")
            assert len(await answer.read()) == BODY
        assert there.counts("large") == (1, 0)


@pytest.mark.deep
async def test_million_messages_are_browsed_and_searched_in_parts() -> None:
    """A page takes the same time anywhere in the queue, and a search says where to go on."""
    async with world() as there:
        namespace = there.broker.namespace("contoso")
        drafts = [Draft(encoded({"body": "hay"}))] * 20_000
        for _ in range(MILLION // len(drafts)):
            stored = asyncio.get_running_loop().create_future()
            namespace.catalog.queue("orders").send(drafts, namespace.now_ms(), stored.set_result)
            await stored
        assert there.counts() == (MILLION, 0)
        began_s = time.monotonic()
        found = await there.get(f"{ORDERS}/messages?path=orders&from=900000&count=50")
        assert [row["sequence_number"] for row in found["messages"]] == [str(900_000 + at) for at in range(50)]
        assert time.monotonic() - began_s < 5
        searched = await there.get(f"{ORDERS}/messages?path=orders&grep=needle")
        assert searched["messages"] == [] and int(searched["next"]) == searched["scanned"] + 1
        on = await there.get(f"{ORDERS}/messages?path=orders&grep=hay&from={MILLION - 99}")
        assert len(on["messages"]) == 100 and on["next"] is None
