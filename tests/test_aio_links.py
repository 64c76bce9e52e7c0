"""The deadline of a call on an asyncio sender: one timer for many calls, and nobody else's cancellation is eaten."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.aio_links import Alarm, AsyncLink


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
