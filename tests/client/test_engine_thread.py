"""An engine in a thread: calls that are interrupted, listeners, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus import PairedServiceBusClient
from pairbus.client import engine_thread as engine_threads
from pairbus.client.engine import Engine
from pairbus.client.engine_thread import EngineThread, ListenerThread
from pairbus.client.errors import ClientClosed
from pairbus.client.outgoing import Outgoing
from pairbus.errors import PairbusError
from pairbus.pairing.events import BacklogQueueBack, Event

NOBODY = "Endpoint=sb://127.0.0.1:{};SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
WAIT_S = 10.0


class Interrupted(BaseException):
    """A soft time limit, raised in the thread that waits."""


async def ready(engine: Engine) -> None:
    """Wait until the engine is at work."""


@pytest.fixture
def engine_thread() -> Iterator[EngineThread]:
    client = PairedServiceBusClient.from_connection_strings(NOBODY.format(1), NOBODY.format(2))
    thread = EngineThread(client._state)
    thread.run(ready)
    yield thread
    thread.stop(WAIT_S)


def a_message() -> Outgoing:
    return Outgoing([b"x"], ["id"], is_batch=False)


def interrupted(thread: EngineThread, monkeypatch: pytest.MonkeyPatch, when: threading.Event | None = None) -> None:
    """Have the next call interrupted between two slices of its wait, once `when` is set."""

    def look(deadline: float | None) -> None:
        if when is None or when.is_set():
            raise Interrupted

    monkeypatch.setattr(engine_threads, "SLICE_S", 0.01)
    monkeypatch.setattr(thread, "_look", look)


# ── calls ──


def test_a_call_returns_its_result_or_raises_its_error(engine_thread: EngineThread) -> None:
    async def double(engine: Engine) -> int:
        return 2

    async def fail(engine: Engine) -> None:
        raise ValueError("as it was")

    assert engine_thread.run(double) == 2
    with pytest.raises(ValueError, match="as it was"):
        engine_thread.run(fail)


def test_an_interrupted_call_is_cancelled(engine_thread: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interruption is raised unchanged, and nothing further is attempted for the message."""
    begun, cancelled, outgoing = threading.Event(), threading.Event(), a_message()

    async def work(engine: Engine) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    interrupted(engine_thread, monkeypatch, begun)
    with pytest.raises(Interrupted):
        engine_thread.run(work, outgoing=outgoing)
    assert cancelled.wait(WAIT_S) and outgoing.is_cancelled


def test_an_interrupted_call_that_waits_never_begins(
    engine_thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine was busy with something else: the message of the call must not be sent afterwards."""
    held, let_go, began = threading.Event(), threading.Event(), threading.Event()

    async def block(engine: Engine) -> None:
        held.set()
        assert let_go.wait(WAIT_S)

    async def work(engine: Engine) -> None:
        began.set()

    async def nothing(engine: Engine) -> str:
        return "done"

    other = threading.Thread(target=engine_thread.run, args=(block,))
    with monkeypatch.context() as patched:
        patched.setattr(engine_thread, "_look", lambda deadline: None)
        other.start()
        assert held.wait(WAIT_S)
        interrupted(engine_thread, patched)
        outgoing = a_message()
        with pytest.raises(Interrupted):
            engine_thread.run(work, outgoing=outgoing)
        patched.setattr(engine_thread, "_look", lambda deadline: None)
        let_go.set()
        other.join(WAIT_S)
    assert engine_thread.run(nothing) == "done"
    assert not began.is_set() and outgoing.is_cancelled


def test_a_call_does_not_outlive_its_thread(engine_thread: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that the thread never began says that its outcome is not known."""
    monkeypatch.setattr(engine_threads, "SLICE_S", 0.01)
    monkeypatch.setattr(engine_thread._loop, "call_soon_threadsafe", lambda *work: None, raising=False)
    monkeypatch.setattr(EngineThread, "is_usable", property(lambda self: False))

    async def never(engine: Engine) -> None:
        raise AssertionError("nobody runs it")

    with pytest.raises(PairbusError, match="thread has ended"):
        engine_thread.run(never)


def test_a_call_does_not_wait_for_an_engine_that_is_stuck(
    engine_thread: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline holds also when the event loop is too busy to cancel the call; nothing further is attempted."""
    monkeypatch.setattr(engine_threads, "SLICE_S", 0.01)
    monkeypatch.setattr(engine_threads, "LATE_S", 0.0)
    let_go, outgoing = threading.Event(), a_message()

    async def block(engine: Engine) -> None:
        let_go.wait(WAIT_S)

    with pytest.raises(OperationTimeoutError, match="did not answer in time; the outcome is not known"):
        engine_thread.run(block, outgoing=outgoing, timeout_s=0.01)
    let_go.set()
    assert outgoing.is_cancelled


def test_call_of_a_stopped_thread_says_where_its_message_may_be(
    engine_thread: EngineThread,
) -> None:
    """Closing gives sends five seconds; one that is still under way then may have been stored."""

    async def stopped(engine: Engine) -> None:
        engine_thread.abandon()
        await asyncio.sleep(60)

    with pytest.raises(ClientClosed, match="the primary and a backlog queue did not answer") as caught:
        engine_thread.run(stopped)
    assert caught.value.outcome_unknown


def test_a_call_waits_for_a_future_without_a_task(engine_thread: EngineThread) -> None:
    """As a settlement does: the answer of the service ends the call."""

    def answered(answer: Callable[[asyncio.Future[int]], None]) -> Callable[[Engine], asyncio.Future[int]]:
        def work(engine: Engine) -> asyncio.Future[int]:
            future = engine.loop.create_future()
            engine.loop.call_soon(answer, future)
            return future

        return work

    assert engine_thread.run(answered(lambda future: future.set_result(2))) == 2
    with pytest.raises(ValueError, match="as it was"):
        engine_thread.run(answered(lambda future: future.set_exception(ValueError("as it was"))))
    with pytest.raises(ClientClosed):
        engine_thread.run(answered(lambda future: engine_thread.abandon()))


def test_a_call_whose_work_cannot_begin_raises_at_once(engine_thread: EngineThread) -> None:
    def refuse(engine: Engine) -> asyncio.Future[None]:
        raise ValueError("not possible")

    with pytest.raises(ValueError, match="not possible"):
        engine_thread.run(refuse)
    engine_thread.run(ready)


def test_the_engine_thread_cannot_wait_for_itself(engine_thread: EngineThread) -> None:
    """A logging handler that sends would wait for ever."""

    async def reenter(engine: Engine) -> Any:
        return engine_thread.run(reenter)

    with pytest.raises(RuntimeError, match="called from its own thread"):
        engine_thread.run(reenter)


def test_a_forgotten_client_ends_its_thread() -> None:
    """The thread keeps the engine alive, and the engine must not keep the client alive."""
    client = PairedServiceBusClient.from_connection_strings(NOBODY.format(1), NOBODY.format(2))
    thread = client._life.engine()._thread
    del client
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()


# ── listeners ──


def events(count: int) -> list[Event]:
    return [BacklogQueueBack(str(number)) for number in range(count)]


def test_a_listener_hears_events_in_order_and_may_call_the_client(engine_thread: EngineThread) -> None:
    """Listeners run in a thread of their own, so a call of the client from a listener does not wait for itself."""
    heard: list[Any] = []

    async def number(engine: Engine) -> int:
        return len(heard)

    listener = ListenerThread(lambda event: heard.append((str(event), engine_thread.run(number))))
    for event in events(50):
        listener.put(event)
    listener.flush(WAIT_S)
    assert heard == [(str(event), index) for index, event in enumerate(events(50))]


def test_a_listener_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The failing listener hears the next event all the same."""
    heard: list[Event] = []

    def listen(event: Event) -> None:
        heard.append(event)
        if len(heard) == 1:
            raise ValueError("a bug of the application")

    listener = ListenerThread(listen)
    for event in events(2):
        listener.put(event)
    listener.flush(WAIT_S)
    assert len(heard) == 2
    assert "on_event failed" in caplog.text and "a bug of the application" in caplog.text


def test_a_listener_far_behind_loses_the_oldest_events(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory is bounded; one warning tells of it."""
    assert engine_threads.EVENTS_MAX == 10_000
    monkeypatch.setattr(engine_threads, "EVENTS_MAX", 10)
    held, let_go, heard = threading.Event(), threading.Event(), list[str]()

    def listen(event: Event) -> None:
        held.set()
        assert let_go.wait(WAIT_S)
        heard.append(event.queue)  # type: ignore[attr-defined]

    listener = ListenerThread(listen)
    first, *others = events(31)
    listener.put(first)
    assert held.wait(WAIT_S)
    for event in others:
        listener.put(event)
    let_go.set()
    listener.flush(WAIT_S)
    assert heard == ["0", *(str(number) for number in range(21, 31))]
    assert caplog.text.count("events behind") == 1
