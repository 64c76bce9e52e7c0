"""A client that is closed while it pairs with a secondary that does not answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pairbus.client.errors import ClientClosed
from pairbus.pairing.events import Closed, Paired
from pairbus.spool import open_free
from tests.client.world import Client, Stage, message, until
from tests.limits import slowness
from tests.sdk.flavours import Flavour


class Secondary:
    """Answers the requests of pairing when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = threading.Event()

    async def provision(self, *args: Any) -> list[str]:
        self.asked += 1
        await until(self.answers.is_set, "the secondary is told to answer", 20)
        return list(Stage.BACKLOG)


@pytest.fixture
def secondary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Secondary]:
    secondary = Secondary()
    monkeypatch.setattr("pairbus.client.engine.provision", secondary.provision)
    yield secondary
    secondary.answers.set()


def nothing_runs(client: Client) -> bool:
    if client.flavour == "aio":
        return client.client._life.engine._background is None
    return not client.client._life.thread.is_usable


@pytest.mark.parametrize("require", [True, False])
async def test_closing_does_not_wait_for_pairing(
    stage: Stage, flavour: Flavour, secondary: Secondary, require: bool
) -> None:
    """Closing used to wait for minutes behind requests that nobody answers."""
    client = stage.client(flavour, enable_syphon=True, require_secondary=require)
    pairing = asyncio.create_task(client.pair())
    await until(lambda: secondary.asked, "pairing is under way")
    began = time.monotonic()
    await client.close()
    assert time.monotonic() - began < 5.0 * slowness()
    secondary.answers.set()
    with pytest.raises(ClientClosed):
        await pairing
    assert [type(event) for event in client.events] == [Closed]
    assert not client.told(Paired) and nothing_runs(client)
    await client.close()


async def test_closing_ends_sends_that_wait_for_pairing(stage: Stage, flavour: Flavour, secondary: Secondary) -> None:
    """The send raises ClientClosed, not a cancellation, and ends with the client instead of its time-out."""
    client = stage.client(flavour)
    sender = client.sender("orders")
    sends = [asyncio.create_task(client.call(sender.sender.send_messages, message())) for _ in range(2)]
    await until(lambda: secondary.asked, "pairing is under way")
    await client.close()
    began = time.monotonic()
    await asyncio.wait(sends, timeout=30.0)
    assert time.monotonic() - began < 2.0 * slowness()
    for send in sends:
        error = send.exception()  # would raise CancelledError if the send had been cancelled
        assert isinstance(error, ClientClosed) and not error.outcome_unknown
        assert "Nothing was sent by this call" in str(error)
    assert stage.primary.received == stage.secondary.received == []


async def test_who_cancels_a_pairing_gets_what_he_asked_for(stage: Stage, secondary: Secondary) -> None:
    client = stage.client("aio")
    pairing = asyncio.create_task(client.client.pair())
    await until(lambda: secondary.asked, "pairing is under way")
    pairing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pairing
    secondary.answers.set()
    await client.sender("orders").send(message())
    assert secondary.asked == 1, "pairing went on: other callers may wait for it"


async def test_a_spool_that_is_opened_too_late_is_given_back(
    stage: Stage, flavour: Flavour, secondary: Secondary, tmp_path: Path
) -> None:
    """If it were kept, the folder would stay locked by a closed client."""
    client = stage.client(flavour, spool_dir=tmp_path)
    spool = client.client._state.spool
    open_spool, opening, opens, opened = spool._open, threading.Event(), threading.Event(), threading.Event()

    def open_slowly(folder: Any, is_needed: Any) -> None:
        opening.set()
        assert opens.wait(20)
        open_spool(folder, is_needed)
        opened.set()

    spool._open = open_slowly
    pairing = asyncio.create_task(client.pair())
    await until(opening.is_set, "the spool is being opened")
    await client.close()
    opens.set()
    with pytest.raises(ClientClosed):
        await pairing
    await until(opened.is_set, "the spool is opened, and given back")
    again = open_free(str(tmp_path), max_bytes=1 << 20)
    assert Path(again.folder) == tmp_path
    again.close()
    assert secondary.asked == 0
