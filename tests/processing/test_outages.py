"""A processor while its namespace is away: it says why nothing comes, once, and goes on by itself."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, defaultdict
from typing import Any

import pytest

from pairbus import Backoff, DeadLetter
from pairbus.pairing.events import ReceivingInterrupted, ReceivingResumed
from pairbus.testing import NemesisThread
from tests.processing.desk import Desk, until

QUICK = Backoff(first=0.05, factor=2.0, jitter=0.5, max=0.2)


async def test_outage_is_told_once_and_ends_by_itself(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pairbus")
    queue, seen = desk.queue(), []
    await desk.send(queue, "a")
    async with desk.processor(queue, lambda message: seen.append(str(message))) as processor:
        await until(lambda: seen == ["a"], "the message before")
        outage = desk.broker.namespace().outage("refuse")
        await until(lambda: processor.outage is not None, "the outage is noticed")
        assert "gets no messages" in repr(processor)
        await asyncio.sleep(1.0)
        outage.end()
        await until(lambda: processor.outage is None, "the end of the outage is noticed", within_s=30)
        await desk.send(queue, "b")
        await until(lambda: seen == ["a", "b"], "the message after")
    await until(lambda: desk.told(ReceivingResumed), "the event")
    assert len(desk.told(ReceivingInterrupted)) == len(desk.told(ReceivingResumed)) == 1
    lines = [
        each.getMessage() for each in caplog.records if each.getMessage().startswith(f"{queue} nothing is received")
    ]
    assert len(lines) == 1
    await until(lambda: any(type(event) is ReceivingResumed for event in desk.client_events), "the client's event")


async def test_processor_waits_for_a_queue_that_is_created_later(desk: Desk) -> None:
    name, seen = f"later-{time.monotonic_ns()}", []
    async with desk.processor(name, lambda message: seen.append(str(message))) as processor:
        await until(lambda: processor.outage is not None, "the queue is missing")
        desk.broker.create_queue(name)
        await desk.send(name, "a")
        await until(lambda: seen == ["a"], "the message", within_s=30)


async def test_started_processor_begins_when_its_namespace_is_there(desk: Desk) -> None:
    queue, seen = desk.queue(), []
    outage = desk.broker.namespace().outage("refuse")
    async with desk.processor(queue, lambda message: seen.append(str(message))) as processor:
        await until(lambda: processor.outage is not None, "the outage is noticed")
        outage.end()
        await desk.send(queue, "a")
        await until(lambda: seen == ["a"], "the message", within_s=30)


async def test_handler_that_runs_over_a_lost_connection_is_completed(desk: Desk) -> None:
    """The lock outlives the link: the message is settled by its lock token."""
    with NemesisThread.before(desk.broker.connection_string()) as nemesis:
        desk.use(nemesis.connection_string(desk.broker.connection_string()))
        queue, seen = desk.queue(), []

        def behave(message: Any) -> Any:
            seen.append(str(message))
            return desk.nap(0.6)

        await desk.send(queue, "a")
        async with desk.processor(queue, behave) as processor:
            await until(lambda: seen, "the handler runs")
            nemesis.cut()
            nemesis.heal()
            await until(lambda: processor.counts.completed, "it is completed", within_s=30)
        assert seen == ["a"]
        assert await desk.take(queue, 0) == []
        await desk.close()
        desk._client = None


@pytest.mark.parametrize("sessions", [0, 4])
async def test_no_message_is_lost_or_handled_twice_under_its_lock(desk: Desk, sessions: int) -> None:
    """Handlers raise, dead-letter, take long or block, and connections are lost all the time."""
    load = Load(240, seed=4711 + sessions)
    with NemesisThread.before(desk.broker.connection_string()) as nemesis:
        desk.use(nemesis.connection_string(desk.broker.connection_string()))
        queue = desk.queue(requires_session=bool(sessions), max_delivery_count=100)
        for number in range(sessions or 1):
            fields = {"session_id": f"s{number}"} if sessions else {}
            await desk.send(queue, *load.bodies[number :: sessions or 1], **fields)
        handler = load.handle if desk.is_aio else load.handle_in_thread
        options = {"max_concurrent_calls": 16, "retry": QUICK, "session_idle_timeout": 0.5}
        processor = desk.client.get_queue_processor(queue, handler, on_error=desk.events.append, **options)
        await desk.call(processor.start)
        for _ in range(4):
            await asyncio.sleep(0.15)
            nemesis.cut()
            await asyncio.sleep(0.05)
            nemesis.heal()
        # Messages that were on their way when a connection was cut come again when their locks end.
        desk.broker.clock().advance(61)
        await until(lambda: len(load.ended) == 240, "every message has come to an end", within_s=60)
        await desk.call(processor.stop)
        desk.broker.clock().advance(61)
        assert load.twice == []
        for name, seen in load.handled.items() if sessions else ():
            firsts = list(dict.fromkeys(seen))
            assert firsts == load.bodies[int(name[1:]) :: sessions], "no message overtook an earlier one"
        letters = await desk.take(f"{queue}/$DeadLetterQueue", len(load.bad))
        assert Counter(letter.property("DeadLetterReason") for letter in letters) == {"Bad": len(load.bad)}
        await desk.close()
        desk._client = None


class Load:
    """Messages whose handlers do by chance what handlers do."""

    def __init__(self, count: int, seed: int) -> None:
        source = random.Random(seed)
        self._fates = {str(number): source.random() for number in range(count)}
        self.bodies = list(self._fates)
        self.bad = {body for body, fate in self._fates.items() if 0.2 <= fate < 0.25}
        self.ended: set[str] = set()
        self.twice: list[str] = []
        "Messages that two handlers had at once, while the first one held the lock."
        self.handled: dict[str, list[str]] = defaultdict(list)
        self._at_work: dict[str, Any] = {}

    async def handle(self, message: Any) -> None:
        fate = self._begin(message)
        try:
            if fate > 0.9:
                await asyncio.sleep(0.05)
            elif fate > 0.88:
                self._block()
            self._end(message, fate)
        finally:
            self._leave(message)

    def handle_in_thread(self, message: Any) -> None:
        fate = self._begin(message)
        try:
            if fate > 0.9:
                time.sleep(0.05)
            self._end(message, fate)
        finally:
            self._leave(message)

    def _begin(self, message: Any) -> float:
        body = str(message)
        earlier = self._at_work.get(body)
        if earlier is not None and not earlier.lock_lost:
            self.twice.append(body)
        self._at_work[body] = message
        self.handled[message.session_id or ""].append(body)
        return self._fates[body]

    def _block(self) -> None:
        """Block the event loop of the application."""
        time.sleep(0.02)

    def _end(self, message: Any, fate: float) -> None:
        if fate < 0.2 and message.attempt == 1:
            raise ValueError("not yet")
        self.ended.add(str(message))
        if str(message) in self.bad:
            raise DeadLetter("Bad", "by chance")

    def _leave(self, message: Any) -> None:
        if self._at_work.get(str(message)) is message:
            del self._at_work[str(message)]
