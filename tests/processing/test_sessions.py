"""A processor of an entity with sessions: order, slots, state, hooks, retries in place."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

from pairbus import Backoff
from pairbus.client.processing.events import HookFailed, LockLost
from pairbus.transport import connect
from tests.processing.desk import Desk, body_of, until

QUICK = Backoff(first=0.05, factor=1.0, jitter=0.0)


async def fill(desk: Desk, queue: str, sessions: int, each: int) -> None:
    for number in range(sessions):
        await desk.send(queue, *(f"s{number}:{index}" for index in range(each)), session_id=f"s{number}")


async def test_order_is_kept_within_sessions_also_when_handlers_fail(desk: Desk) -> None:
    """A message that is tried again is not overtaken."""
    queue, done = desk.queue(requires_session=True), defaultdict(list)
    failed: Counter[str] = Counter()

    def behave(message: Any) -> None:
        body = str(message)
        if int(body.split(":")[1]) % 3 == 0 and failed[body] < 2:
            failed[body] += 1
            raise ValueError("not yet")
        done[message.session_id].append(body)

    await fill(desk, queue, 3, 10)
    async with desk.processor(queue, behave, retry=QUICK) as processor:
        await until(lambda: processor.counts.completed == 30, "all are completed")
    assert dict(done) == {f"s{number}": [f"s{number}:{index}" for index in range(10)] for number in range(3)}
    assert set(failed.values()) == {2}
    assert await desk.take(queue, 0) == []


async def test_a_session_has_one_handler_and_sessions_run_side_by_side(desk: Desk) -> None:
    queue, at_work = desk.queue(requires_session=True), Counter[str]()
    most: Counter[str] = Counter()

    def enter(message: Any) -> None:
        at_work[message.session_id] += 1
        most[message.session_id] = max(most[message.session_id], at_work[message.session_id])

    def behave(message: Any) -> Any:
        enter(message)
        if not desk.is_aio:
            time.sleep(0.02)
            at_work[message.session_id] -= 1
            return None

        async def work() -> None:
            await asyncio.sleep(0.02)
            at_work[message.session_id] -= 1

        return work()

    await fill(desk, queue, 4, 8)
    async with desk.processor(queue, behave, max_concurrent_sessions=4) as processor:
        await until(lambda: processor.counts.completed == 32, "all are completed")
    assert set(most.values()) == {1}
    assert 2 <= desk.most_at_once <= 4


async def test_idle_session_gives_its_slot_to_the_next(desk: Desk) -> None:
    queue, seen = desk.queue(requires_session=True), []
    hooks: list[tuple[str, str]] = []
    await fill(desk, queue, 3, 2)
    async with desk.processor(
        queue,
        lambda message: seen.append(message.session_id),
        max_concurrent_sessions=1,
        session_idle_timeout=0.2,
        on_session_open=lambda session: hooks.append(("open", session.session_id)),
        on_session_close=lambda session: hooks.append(("close", session.session_id)),
    ) as processor:
        await until(lambda: processor.counts.completed == 6, "the messages of all sessions")
    assert Counter(seen) == {"s0": 2, "s1": 2, "s2": 2}
    opened = [session for hook, session in hooks if hook == "open"]
    assert sorted(opened) == ["s0", "s1", "s2"]
    assert hooks == [(hook, session) for session in opened for hook in ("open", "close")]


async def test_state_of_the_session_is_read_and_set(desk: Desk) -> None:
    queue, seen = desk.queue(requires_session=True), []

    async def add(message: Any) -> None:
        before = await message.session.get_state()
        seen.append(before)
        await message.session.set_state((before or b"") + str(message)[-1].encode())

    def add_in_thread(message: Any) -> None:
        before = message.session.get_state()
        seen.append(before)
        message.session.set_state((before or b"") + str(message)[-1].encode())

    await fill(desk, queue, 1, 3)
    async with desk.processor(queue, add if desk.is_aio else add_in_thread) as processor:
        await until(lambda: processor.counts.completed == 3, "all are completed")
    assert seen == [None, b"0", b"01"]


async def test_named_sessions_alone_are_held(desk: Desk) -> None:
    queue, seen = desk.queue(requires_session=True), []
    await fill(desk, queue, 4, 2)
    async with desk.processor(
        queue,
        lambda message: seen.append(message.session_id),
        session_ids=["s1", "s3"],
        max_concurrent_sessions=1,
        session_idle_timeout=0.1,
    ) as processor:
        await until(lambda: processor.counts.completed == 4, "the messages of two sessions")
    assert Counter(seen) == {"s1": 2, "s3": 2}


async def test_lock_of_a_session_is_renewed_while_a_handler_blocks(desk: Desk) -> None:
    queue, seen = desk.queue(requires_session=True, lock_duration=timedelta(seconds=1)), []

    def behave(message: Any) -> None:
        seen.append(str(message))
        if len(seen) == 1:
            time.sleep(2.5)

    await fill(desk, queue, 1, 3)
    async with desk.processor(queue, behave) as processor:
        await until(lambda: processor.counts.completed == 3, "all are completed")
    assert seen == ["s0:0", "s0:1", "s0:2"]
    assert desk.told(LockLost) == []


async def test_lost_session_is_taken_again_and_goes_on_in_order(desk: Desk) -> None:
    """A handler that takes too long loses the session; its successor waits for it."""
    queue, seen = desk.queue(requires_session=True, lock_duration=timedelta(seconds=1)), []

    def behave(message: Any) -> Any:
        seen.append(str(message))
        if len(seen) > 1:
            return None
        if desk.is_aio:
            return asyncio.sleep(30)
        while not message.lock_lost:
            time.sleep(0.01)
        return None

    await fill(desk, queue, 1, 3)
    async with desk.processor(queue, behave, max_auto_lock_renewal_duration=0) as processor:
        await until(lambda: processor.counts.completed == 3, "all are completed", within_s=30)
    assert seen == ["s0:0", "s0:0", "s0:1", "s0:2"]
    assert len(desk.told(LockLost)) == 1
    assert desk.most_at_once == 1


async def test_nothing_is_locked_after_a_stop_with_sessions(desk: Desk) -> None:
    queue, seen = desk.queue(requires_session=True), []

    def behave(message: Any) -> Any:
        seen.append(str(message))
        return desk.nap(0.02)

    await fill(desk, queue, 3, 20)
    async with desk.processor(queue, behave, max_concurrent_sessions=2):
        await until(lambda: len(seen) > 6, "some are handled")
    left: list[str] = []
    async with await connect(desk.broker.connection_string()) as connection:
        for session in ("s0", "s1", "s2"):
            receiver = await connection.receiver(queue, credit=100, session=session)
            while batch := await receiver.receive(100, timeout_s=0.3 if left else 1.0):
                left += [body for each in batch for body in [body_of_payload(each.payload)]]
                await receiver.complete(batch)
            await receiver.close()
    assert Counter(seen) + Counter(left) == Counter(f"s{n}:{i}" for n in range(3) for i in range(20))


def body_of_payload(payload: bytes) -> str:
    from pairbus.amqp.message import Message

    return body_of(Message.decode(payload))


async def test_hook_that_fails_is_told_and_the_session_goes_on(desk: Desk) -> None:
    queue = desk.queue(requires_session=True)

    def hook(session: Any) -> None:
        raise ValueError("no database")

    await fill(desk, queue, 1, 2)
    async with desk.processor(queue, lambda message: None, on_session_open=hook) as processor:
        await until(lambda: processor.counts.completed == 2, "both are completed")
    (failed,) = desk.told(HookFailed)
    assert (failed.session_id, failed.hook, str(failed.error)) == ("s0", "on_session_open", "no database")
