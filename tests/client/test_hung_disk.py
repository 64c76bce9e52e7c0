"""The disk of a spool does not answer: calls end in time, and the application's event loop goes on."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import pairbus.aio
from pairbus import spool as spools
from pairbus.amqp.message import Message, Properties
from pairbus.client import background, engine
from pairbus.client.errors import ClientClosed, SendAvailabilityBacklogError
from pairbus.client.provisioning import provision
from pairbus.errors import SpoolError, SpoolInUse
from pairbus.spool import Spool, SpoolEntry, forwarder, holder
from tests.client.world import CALL_S, Client, Stage, message, until
from tests.scripted import Reject, ScriptedEndpoint
from tests.sdk.flavours import Flavour


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder, "CLOSE_S", 0.2)
    monkeypatch.setattr(forwarder, "LAST_WRITE_S", 0.2)


async def both_away(stage: Stage, flavour: Flavour, folder: Path, **options: Any) -> Client:
    """A client with an open spool, whose namespaces refuse every connection."""
    client = stage.client(flavour, spool_dir=folder, **options)
    await client.pair()
    for endpoint in (stage.primary, stage.secondary):
        endpoint.on("connect", Reject())
    return client


def come_back(stage: Stage) -> None:
    for endpoint in (stage.primary, stage.secondary):
        endpoint.heal()


def spool_of(client: Client) -> Spool:
    spool = client.client._state.spool.open_spool
    assert isinstance(spool, Spool)
    return spool


@contextmanager
def hanging(spool: Spool) -> Iterator[None]:
    """No write to the spool returns within the block, as with a network disk that is away."""
    with spool._commits._io:
        yield


def waiting_in(folder: Path) -> int | None:
    """Return how many messages wait in the spool; None while it is locked."""
    try:
        with closing(Spool(folder)) as spool:
            return spool.waiting
    except SpoolInUse:
        return None


async def test_a_disk_that_hangs_does_not_hold_a_send(stage: Stage, flavour: Flavour, tmp_path: Path) -> None:
    """The error comes with the time-out, and says that the spool may have the message: the write may still end."""
    client = await both_away(stage, flavour, tmp_path)
    with hanging(spool_of(client)):
        error = await client.sender("orders").error(message(message_id="late"), timeout=2.0)
    assert isinstance(error, SendAvailabilityBacklogError) and error.outcome_unknown
    assert error.may_be_in == ("the spool",)
    assert "the spool's disk did not answer" in str(error)
    await until(lambda: "spool=1" in repr(client.client), "the write has ended")


async def test_write_that_has_not_begun_when_its_send_ends_is_not_made(
    stage: Stage, flavour: Flavour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller was told that the message is stored nowhere, and a long hang must not fill the memory."""
    monkeypatch.setattr(spools, "DISK_THREADS", 1)
    answers, append = threading.Event(), Spool.append

    def hang(spool: Spool, entries: Sequence[SpoolEntry]) -> int:
        answers.wait(CALL_S)
        return append(spool, entries)

    monkeypatch.setattr(Spool, "append", hang)
    client = await both_away(stage, flavour, tmp_path)
    sender = client.sender("orders")
    try:
        first = await sender.error(message(message_id="begun"), timeout=1.0)
        second = await sender.error(message(message_id="not begun"), timeout=1.0)
        assert isinstance(first, SendAvailabilityBacklogError) and first.may_be_in == ("the spool",)
        assert isinstance(second, SendAvailabilityBacklogError)
        assert (second.may_be_in, second.outcome_unknown) == ((), False)
    finally:
        answers.set()
    await until(lambda: spool_of(client).waiting == 1, "the first write has ended")
    await client.close()
    assert waiting_in(tmp_path) == 1


async def test_a_disk_that_hangs_does_not_hold_close(
    stage: Stage, flavour: Flavour, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An application must be able to end. The write ends when the disk answers, and the folder is free then."""
    client = await both_away(stage, flavour, tmp_path)
    with hanging(spool_of(client)):
        error = await client.sender("orders").error(message(message_id="late"), timeout=1.0)
        assert isinstance(error, SendAvailabilityBacklogError) and error.may_be_in == ("the spool",)
        await client.close()
        assert [text for text in caplog.messages if "does not answer" in text] != []
        assert waiting_in(tmp_path) is None, "the folder is still locked"
    await until(lambda: waiting_in(tmp_path) == 1, "the folder is free, with the message")


async def test_a_disk_that_hangs_does_not_hold_clear_pairing(
    stage: Stage, flavour: Flavour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spools, "DISK_THREADS", 1)
    client = await both_away(stage, flavour, tmp_path)
    with hanging(spool_of(client)):
        await client.sender("orders").error(message(message_id="late"), timeout=1.0)
        await client.clear_pairing()
    await until(lambda: waiting_in(tmp_path) is not None, "the folder is free")


async def test_a_disk_that_hangs_while_messages_are_forwarded_does_not_hold_the_event_loop(
    stage: Stage, flavour: Flavour, tmp_path: Path
) -> None:
    """A forwarder that is cancelled has a last write to make; other tasks of the application must not wait for it."""
    client = await both_away(stage, flavour, tmp_path)
    await client.sender("orders").send(message(message_id="one"), timeout=4.0)
    spool = spool_of(client)
    hangs, answers, carry_out = threading.Event(), threading.Event(), spool._commits._transaction

    def hang(changes: Any) -> Any:
        hangs.set()
        answers.wait(CALL_S)
        return carry_out(changes)

    spool._commits._transaction = hang  # type: ignore[method-assign]
    come_back(stage)
    assert await asyncio.to_thread(hangs.wait, CALL_S), "the message is forwarded, and leaves the spool"
    late = threading.Timer(CALL_S / 2, answers.set)  # ends a test whose event loop stands still
    late.start()
    try:
        await client.close()
        assert not answers.is_set(), "close() has waited for the disk"
    finally:
        late.cancel()
        answers.set()
    await until(lambda: waiting_in(tmp_path) == 0, "the last write has ended")


def test_close_that_ends_with_its_loop_still_gives_the_spool_back(tmp_path: Path) -> None:
    """A time limit or Ctrl-C ends the loop during `close()`. The next client of the process needs the folder."""

    async def main() -> None:
        async with ScriptedEndpoint() as primary, ScriptedEndpoint() as secondary:
            client = pairbus.aio.PairedServiceBusClient.from_connection_strings(
                primary.connection_string,
                secondary.connection_string,
                create_backlog_queues=False,
                spool_dir=tmp_path,
            )
            await client.pair()
            closing_it = asyncio.create_task(client.close())
            await asyncio.sleep(0)
            assert client._life.ending is not None, "closing has begun"
            closing_it.cancel()

    asyncio.run(main())
    assert waiting_in(tmp_path) == 0


async def test_disk_that_hangs_while_the_spool_is_opened_holds_no_send(
    stage: Stage, flavour: Flavour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The primary is healthy. When the disk answers, the spool is there, and messages of an earlier client go home."""
    answers, opened = threading.Event(), spools.open_free
    monkeypatch.setattr(engine, "SPOOL_OPEN_S", 0.1)

    def hang(*args: Any, **options: Any) -> Spool:
        answers.wait(CALL_S)
        return opened(*args, **options)

    with closing(Spool(tmp_path)) as earlier:
        earlier.append(
            [
                SpoolEntry(
                    "orders",
                    Message(properties=Properties(message_id="earlier"), data=[b"x"]).encode(),
                    "earlier",
                    None,
                    None,
                    None,
                    1,
                )
            ]
        )
    monkeypatch.setattr(holder, "open_free", hang)
    client = stage.client(flavour, spool_dir=tmp_path)
    try:
        sender = client.sender("orders")
        await sender.send(message(message_id="healthy"), timeout=10.0)
        assert len(stage.primary.stored("orders")) == 1
        assert [text for text in caplog.messages if "goes on without its spool" in text] != []
        for endpoint in (stage.primary, stage.secondary):
            endpoint.on("transfer", Reject("amqp:internal-error"))
        error = await sender.error(message(), timeout=1.0)
        assert isinstance(error, SendAvailabilityBacklogError) and not error.may_be_in
        assert "disk has not answered yet" in str(error)
        come_back(stage)
    finally:
        answers.set()
    await until(lambda: len(stage.primary.stored("orders")) == 2, "the message of the earlier client is at home")
    await client.close()
    assert waiting_in(tmp_path) == 0


async def test_spool_that_cannot_be_opened_late_is_told_and_tried_again(
    stage: Stage, flavour: Flavour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers, opened, tries = threading.Event(), spools.open_free, list[int]()
    monkeypatch.setattr(engine, "SPOOL_OPEN_S", 0.1)
    monkeypatch.setattr(background, "OPEN_AGAIN_S", 0.01)

    def fail(*args: Any, **options: Any) -> Spool:
        answers.wait(CALL_S)
        tries.append(1)
        if len(tries) < 3:
            raise SpoolError("a broken disk")
        return opened(*args, **options)

    monkeypatch.setattr(holder, "open_free", fail)
    client = stage.client(flavour, spool_dir=tmp_path)
    await client.sender("orders").send(message())
    answers.set()
    await until(lambda: client.client._state.spool.is_open, "it is open at last")
    assert caplog.text.count("the spool is not open: a broken disk") == 1


async def test_spool_that_cannot_be_opened_while_the_client_is_paired_is_tried_again(
    stage: Stage, flavour: Flavour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its disk answers with an error after the engine has gone on, and before the background begins."""
    opened, tries, answers = spools.open_free, list[int](), threading.Event()
    monkeypatch.setattr(engine, "SPOOL_OPEN_S", 0.01)
    monkeypatch.setattr(background, "OPEN_AGAIN_S", 0.01)

    def fail(*args: Any, **options: Any) -> Spool:
        tries.append(1)
        answers.wait(CALL_S)
        if len(tries) < 3:
            raise SpoolError("a broken disk")
        return opened(*args, **options)

    async def find_late(*args: Any) -> list[str]:
        answers.set()
        await until(lambda: not client.client._state.spool.is_opening, "the disk has answered")
        return await provision(*args)

    monkeypatch.setattr(holder, "open_free", fail)
    monkeypatch.setattr(engine, "provision", find_late)
    client = stage.client(flavour, spool_dir=tmp_path)
    await client.pair()
    await until(lambda: client.client._state.spool.is_open, "it is open at last")
    assert caplog.text.count("the spool is not open: a broken disk") == 1


async def test_disk_that_fails_after_the_client_was_closed_is_not_reported(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for that spool any more: asyncio must not log an error that nobody asked for."""
    begun, answers, reports = threading.Event(), threading.Event(), list[Any]()

    def fail(*given: Any, **more: Any) -> Spool:
        begun.set()
        answers.wait(CALL_S)
        raise SpoolError("the disk is broken")

    monkeypatch.setattr(holder, "open_free", fail)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    client = stage.client("aio", spool_dir=tmp_path)
    pairing = asyncio.create_task(client.sender("orders").error(message()))
    await until(begun.is_set, "it is being opened")
    await client.close()
    assert isinstance(await pairing, ClientClosed)
    spool = client.client._state.spool
    answers.set()
    await until(spool._opening.done, "it has failed")
    await asyncio.sleep(0.01)  # the loop hears of the failure
    spool._opening = None
    del pairing
    gc.collect()
    assert reports == []
