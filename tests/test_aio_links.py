"""The line before an asyncio sender and the deadline of a call: one timer for many, and nobody is passed over."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.aio_links import Alarm, AsyncLink, Line

NOBODY = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"


async def test_a_late_call_is_cut_off_and_its_task_goes_on() -> None:
    """The task belongs to the application: after the time-out it must be able to await again."""
    alarm = Alarm()
    alarm.set(0.01)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert alarm.clear()
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_timer_of_an_earlier_call_does_not_cut_a_later_one_off() -> None:
    """The timer is kept from call to call, so it rings at times that mean nothing any more."""
    alarm = Alarm()
    alarm.set(0.01)
    assert not alarm.clear()
    alarm.set(60.0)
    await asyncio.sleep(0.03)
    assert not alarm.clear()
    alarm.stop()


async def test_a_shorter_deadline_is_not_kept_waiting_by_a_longer_one_before_it() -> None:
    """Callers choose their own time-outs."""
    alarm = Alarm()
    alarm.set(60.0)
    assert not alarm.clear()
    alarm.set(0.01)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.Event().wait(), 10)
    assert alarm.clear()


async def test_a_cancellation_by_somebody_else_is_not_mistaken_for_the_deadline() -> None:
    """A task that was cancelled must end, even when its call was late in the same moment."""
    alarm = Alarm()

    async def call() -> bool:
        alarm.set(0.01)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return alarm.clear()
        raise AssertionError

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel()
    assert await task is False


async def test_a_cancellation_that_comes_together_with_the_deadline_wins() -> None:
    """Both asked the task to end; only one of them may be taken back."""
    alarm = Alarm()
    alarm.set(0.0)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert task.cancelling() == 2
    assert not alarm.clear()
    task.uncancel()


async def test_who_comes_between_two_turns_stands_in_line_no_longer_than_asked() -> None:
    """The line is not locked at that moment, but the turn is promised to somebody who may keep it for long."""
    link = AsyncLink(None, "orders")  # type: ignore[arg-type]  # never opened
    assert await link.enter(1)
    second = asyncio.create_task(link.enter(60))
    await asyncio.sleep(0)
    link.leave()
    assert await asyncio.wait_for(link.enter(0.01), 5) is False
    assert await second


@pytest.mark.parametrize("forgets", [True, False])
async def test_a_cancellation_that_the_sdk_swallows_still_ends_the_task(forgets: bool) -> None:
    """Connecting, the SDK turns it into an error of its own: the send would go on to the backlog as if never told."""
    async with ServiceBusClient.from_connection_string(NOBODY) as client:
        link = AsyncLink(client, "orders", topic=False)

        async def swallow(sender: object, left_s: float) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not forgets:
                    raise ServiceBusConnectionError(message="cut off") from None

        task = asyncio.create_task(link.call(swallow, 60.0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_who_comes_first_is_served_first_and_nobody_gets_in_between() -> None:
    """A task that leaves and comes back at once must not pass those who wait."""
    line, order = Line(), list[str]()

    async def use(name: str, times: int) -> None:
        for _ in range(times):
            assert await line.enter(10.0)
            order.append(name)
            await asyncio.sleep(0)
            line.leave()

    await asyncio.gather(use("a", 2), use("b", 2), use("c", 1))
    assert order == ["a", "b", "c", "a", "b"]
    assert not line.is_taken


async def test_who_waits_too_long_goes_away_and_the_others_stay() -> None:
    """Each caller has a time-out of its own."""
    line = Line()
    assert await line.enter(10.0)
    patient = asyncio.create_task(line.enter(10.0))
    hasty = asyncio.create_task(line.enter(0.01))
    assert await hasty is False
    line.leave()
    assert await patient is True
    line.leave()
    assert not line.is_taken


@pytest.mark.parametrize("its_turn_came", [False, True])
async def test_who_is_cancelled_while_waiting_keeps_nobody_from_their_turn(its_turn_came: bool) -> None:
    """Also when the turn was given to it in the same moment: it would be taken for ever."""
    line = Line()
    assert await line.enter(10.0)
    leaver, stayer = asyncio.create_task(line.enter(10.0)), asyncio.create_task(line.enter(10.0))
    await asyncio.sleep(0)
    if its_turn_came:
        line.leave()
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    if not its_turn_came:
        line.leave()
    assert await stayer is True
