"""All that a client holds is freed: after `close`, when it was forgotten, and when a signal handler closes it."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pairbus.aio
from pairbus import PairedServiceBusClient
from pairbus.client.engine import Engine
from pairbus.client.errors import ClientClosed, PairedMessagingFactoryError
from pairbus.errors import SpoolInUse
from pairbus.pairing.events import Event
from pairbus.spool import Spool
from tests.client.world import Client, Stage, message, new_client, until
from tests.limits import slowness
from tests.sdk.flavours import Flavour

NOBODY = "Endpoint=sb://127.0.0.1:{};SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
WAIT_S = 20.0


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(("pairbus", "ledger"))}


@pytest.fixture
def before() -> Iterator[set[threading.Thread]]:
    gc.collect()  # clients of earlier tests
    yield ours()


def nobody(**options: Any) -> PairedServiceBusClient:
    return PairedServiceBusClient.from_connection_strings(NOBODY.format(1), NOBODY.format(2), **options)


def is_free(folder: Path) -> bool:
    try:
        Spool(folder).close()
    except SpoolInUse:
        return False
    return True


async def in_use(stage: Stage, flavour: Flavour, folder: Path) -> Client:
    """A client that holds everything that a client can hold, and is not closed at the end of the test."""
    ends = stage.primary.connection_string, stage.secondary.connection_string
    options: dict[str, Any] = {
        "primary_name": "stage",
        "create_backlog_queues": False,
        "control_socket": str(folder / "control"),
    }
    client = new_client(flavour, *ends, spool_dir=folder / "spool", ledger=folder / "ledger", **options)
    await client.sender("orders").send(message())
    await until(lambda: list((folder / "ledger").glob("*")), "the ledger has begun")
    return client


async def test_closed_client_leaves_no_thread(
    stage: Stage, flavour: Flavour, tmp_path: Path, before: set[threading.Thread]
) -> None:
    client = await in_use(stage, flavour, tmp_path)
    assert ours() > before
    await client.close()
    await until(lambda: ours() <= before, "its threads have ended", WAIT_S)
    assert is_free(tmp_path / "spool") and not (tmp_path / "control").exists()


async def test_forgotten_client_leaves_nothing(
    stage: Stage, flavour: Flavour, tmp_path: Path, before: set[threading.Thread]
) -> None:
    """No thread, no lock on the folder of its spool, no control socket."""
    client: Client | None = await in_use(stage, flavour, tmp_path)
    assert ours() > before
    assert client is not None and not is_free(tmp_path / "spool")
    client = None
    gc.collect()
    await until(lambda: ours() <= before, "its threads have ended", WAIT_S)
    assert is_free(tmp_path / "spool") and not (tmp_path / "control").exists()


async def test_client_without_a_spool_starts_no_thread_for_a_disk(stage: Stage, flavour: Flavour) -> None:
    client = stage.client(flavour)
    await client.sender("orders").send(message())
    assert [thread.name for thread in ours() if thread.name.startswith("pairbus-disk")] == []


async def test_receiver_keeps_its_client_alive(stage: Stage) -> None:
    """A program may keep only the receiver; the ledger of its client must go on."""
    client: PairedServiceBusClient | None = nobody()
    assert client is not None
    receiver, state = client.get_queue_receiver("orders"), client._state
    client = None
    gc.collect()
    assert not state.is_closed
    del receiver
    gc.collect()
    assert state.is_closed


def closed_in_first_call(client: PairedServiceBusClient, at: int) -> bool:
    """Make a call, and close the client before the nth line of the call in our code; False when it has fewer lines.

    A signal handler of Python runs in this way: between two lines, in the thread that is interrupted.
    """
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if "/pairbus/client/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                sys.settrace(None)
                client.close()
        return trace

    sys.settrace(trace)
    try:
        client.force_healthy("orders")
    except ClientClosed:
        pass
    finally:
        sys.settrace(None)
    return lines >= at


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
def test_signal_handler_may_close_during_a_call(before: set[threading.Thread], is_first: bool) -> None:
    """At every line of it. The call and the close end, and no thread is left."""
    ended, at = threading.Event(), 0

    def every_line() -> None:
        nonlocal at
        is_reached = True
        while is_reached:
            at += 1
            client = nobody()
            if not is_first:
                client.force_healthy("orders")
            is_reached = closed_in_first_call(client, at)
            client.close()
        ended.set()

    thread = threading.Thread(target=every_line, daemon=True)
    thread.start()
    thread.join(WAIT_S * 3 * slowness())
    assert ended.is_set(), f"the call hangs that was interrupted at its line {at}"
    assert at > 10
    gc.collect()
    assert ours() <= before


async def test_call_during_close_starts_no_thread(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the engine has ended, and the clients of the SDK are still being closed."""
    client = stage.client("sync")
    await client.pair()
    errors: list[BaseException] = []
    close = client.client._primary.close

    def call_and_close() -> None:
        try:
            client.client.pair()
        except ClientClosed as error:
            errors.append(error)
        close()

    monkeypatch.setattr(client.client._primary, "close", call_and_close)
    await client.close()
    assert len(errors) == 1
    assert [thread.name for thread in ours() if thread.name == "pairbus-engine" and thread.is_alive()] == []


async def test_failing_engine_tells_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of certificates that does not exist, for example."""

    def fail(self: Engine, state: object) -> None:
        raise LookupError("no certificates")

    monkeypatch.setattr(Engine, "__init__", fail)
    client = nobody()
    with pytest.raises(LookupError, match="no certificates"):
        await asyncio.to_thread(client.pair)
    client.close()


class Application:
    """It keeps its client, and the client calls it."""

    def __init__(self, flavour: type[Any]) -> None:
        ends = NOBODY.format(1), NOBODY.format(2)
        self.client = flavour.from_connection_strings(*ends, on_event=self.on_event)

    def on_event(self, event: Event) -> None: ...


@pytest.mark.parametrize("is_aio", [False, True], ids=["sync", "aio"])
async def test_closed_client_frees_its_listener(is_aio: bool) -> None:
    """A process that makes a client for each job would grow with each of them."""

    async def closed() -> weakref.ref[Application]:
        application = Application(pairbus.aio.PairedServiceBusClient if is_aio else PairedServiceBusClient)
        closing = application.client.close()
        if is_aio:
            await closing
        return weakref.ref(application)

    application = await closed()

    def is_freed() -> bool:
        gc.collect()
        return application() is None

    await until(is_freed, "nothing holds the application", WAIT_S)  # the thread of the listener has ended


async def test_client_forgotten_as_its_loop_ends_gives_the_spool_back(tmp_path: Path) -> None:
    """`asyncio.run` cancels the end of the client before its first step."""

    async def main() -> None:
        client = pairbus.aio.PairedServiceBusClient.from_connection_strings(
            NOBODY.format(1), NOBODY.format(2), create_backlog_queues=False, spool_dir=tmp_path
        )
        await client.pair()

    def run() -> None:
        asyncio.run(main())
        gc.collect()

    await asyncio.to_thread(run)
    await until(lambda: is_free(tmp_path), "the folder is free", WAIT_S)


def test_asyncio_client_may_be_faulted_while_its_loop_stands() -> None:
    """A program may do so between two calls of `run_until_complete`; calls of receivers end when it goes on."""

    async def begin() -> tuple[Any, asyncio.Task[Any]]:
        client = pairbus.aio.PairedServiceBusClient.from_connection_strings(
            NOBODY.format(1), NOBODY.format(2), create_backlog_queues=False
        )
        await client.pair()
        waiting = asyncio.create_task(client.get_queue_receiver("orders").receive_messages(max_wait_time=60))
        await asyncio.sleep(0)
        return client, waiting

    with asyncio.Runner() as runner:
        client, waiting = runner.run(begin())
        client.fault("primary")
        assert client._state.is_faulted and not waiting.done()
        with pytest.raises(PairedMessagingFactoryError):
            runner.run(asyncio.wait_for(waiting, WAIT_S))
        runner.run(client.close())
