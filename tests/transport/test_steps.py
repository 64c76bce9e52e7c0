"""Silence is judged, not slowness: one clock for each step, and none for time in which the loop did not run."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from pairbus.transport.connection.steps import Steps
from pairbus.transport.errors import ConnectionLost, Timeout
from pairbus.transport.threads import in_thread
from tests.sim.loop import VirtualLoop


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run on a clock that jumps: seconds cost nothing and are exact."""
    loop = VirtualLoop(Random(1))
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


async def took(work: Coroutine[Any, Any, Any]) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(Timeout):
        await work
    return loop.time() - began


def test_each_step_has_its_own_clock() -> None:
    """A long round trip makes every step slow, and none of them silent."""

    async def work() -> None:
        steps = Steps("far", 3.0)
        for what in ("TCP", "TLS", "SASL", "open"):
            assert await steps.step(what, asyncio.sleep(2.9, "there")) == "there"
        assert await took(steps.step("attach", asyncio.sleep(60))) == pytest.approx(3.0)

    run(work())


def test_signs_of_life_start_the_clock_again_until_the_deadline() -> None:
    """Signs of life do not move the caller's deadline."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        steps = Steps("slow", 3.0, loop.time() + 20)
        assert await took(steps.step("open", asyncio.sleep(60), heard=loop.time)) == pytest.approx(20.0)
        began = loop.time()
        steps = Steps("slow", 3.0)
        until_ten = lambda: min(loop.time(), began + 10)  # noqa: E731
        assert await took(steps.step("open", asyncio.sleep(60), heard=until_ten)) == pytest.approx(13.0, abs=0.1)
        loop.call_later(2.0, steps.sign)
        assert await took(steps.step("open", asyncio.sleep(60))) == pytest.approx(5.0)

    run(work())


def test_a_timer_that_fires_late_looks_again() -> None:
    """The answer may lie unread in the socket when the loop was blocked or the process stopped."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        answer: asyncio.Future[str] = loop.create_future()

        def block() -> None:
            loop._now += 10.0
            loop.call_later(0.2, answer.set_result, "there")

        loop.call_later(1.0, block)
        assert await Steps("stopped", 3.0).step("open", answer) == "there"
        loop.call_later(1.0, lambda: setattr(loop, "_now", loop._now + 10.0))
        assert await took(Steps("gone", 3.0).step("open", asyncio.sleep(60))) == pytest.approx(14.0)

    run(work())


def test_work_that_is_given_up_is_cancelled() -> None:
    """A connect whose caller has given up would leave its socket behind."""

    async def work() -> None:
        ended: list[str] = []

        async def hang() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("cancelled")

        await took(Steps("gone", 3.0).step("open", hang()))
        waiting = asyncio.ensure_future(Steps("gone", 3.0).step("open", hang()))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert ended == ["cancelled"] * 2

    run(work())


async def test_a_call_in_a_thread_returns_raises_and_can_be_left() -> None:
    """DNS and sync credentials have no time-out of their own."""
    assert await in_thread("add", lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(KeyError):
        await in_thread("fail", {}.__getitem__, "x")
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread("stop", next, iter(()))
    go = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await in_thread("hang", go.wait)
    go.set()


def test_hanging_call_does_not_delay_the_end_of_the_process() -> None:
    """The interpreter waits for the threads of asyncio's default executor, which would be for ever."""
    program = (
        "import asyncio, time\n"
        "from pairbus.transport.threads import in_thread\n"
        "async def main():\n"
        "    try:\n"
        "        async with asyncio.timeout(0.1):\n"
        "            await in_thread('hang', time.sleep, 60)\n"
        "    except TimeoutError:\n"
        "        print('left')\n"
        "asyncio.run(main())\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("left\n", "")
    assert time.monotonic() - began < 20


async def test_failure_of_a_cancelled_call_is_not_logged() -> None:
    """The peer refuses in the moment in which the caller gives up: asyncio would complain about a lost exception."""
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    answered: asyncio.Future[None] = loop.create_future()

    async def refused() -> None:
        await answered
        raise ConnectionLost("refused")

    caller = loop.create_task(Steps("far", 3.0).step("the answer", refused()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    answered.set_result(None)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    del caller
    gc.collect()
    assert complaints == []
