"""The pool of connections of a Python process: one for each namespace, kept from task to task."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from pairbus.spark import connections
from pairbus.spark.connections import IDLE_S, Borrowed, Secret, run
from pairbus.transport import Carrier
from tests.brokers import BrokerProcess

WAIT_S = 20.0


@pytest.fixture
def place(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Secret:
    monkeypatch.setenv("PAIRBUS_TESTS_OF_THE_POOL", broker.connection_string())
    return Secret("env:PAIRBUS_TESTS_OF_THE_POOL")


def close_idle(after_s: float) -> None:
    """Close connections as if so much time had passed."""

    async def close() -> None:
        own = connections._loop()
        own.close_idle(own.loop.time() + after_s)

    run(close())


def test_a_connection_is_kept_for_the_next_task_and_closed_when_idle(place: Secret) -> None:
    """A micro-batch every second would open a connection every second."""

    async def borrow() -> Carrier:
        async with Borrowed(place, None) as carrier:
            await carrier.connection()
            return carrier

    first = run(borrow())
    close_idle(IDLE_S - 1)
    assert run(borrow()) is first and first.is_connected
    close_idle(IDLE_S + 1)
    assert run(borrow()) is not first


def test_a_connection_in_use_is_not_closed(place: Secret) -> None:
    """A task may take longer than connections stay idle."""

    async def use() -> None:
        async with Borrowed(place, None) as carrier:
            own = connections._loop()
            own.close_idle(own.loop.time() + 2 * IDLE_S)
            async with Borrowed(place, None) as same:
                assert same is carrier
            await carrier.connection()

    run(use())


def test_an_interrupted_caller_ends_its_work() -> None:
    """Ctrl-C in a program with a session of its own: nothing goes on without it."""
    interrupted, cancelled, ident = threading.Event(), threading.Event(), threading.main_thread().ident
    assert ident is not None

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    async def work() -> None:
        try:
            while True:  # a signal does not wake a thread that is about to wait
                signal.pthread_kill(ident, signal.SIGINT)
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(work())
        assert cancelled.wait(WAIT_S)
    finally:
        signal.signal(signal.SIGINT, before)
