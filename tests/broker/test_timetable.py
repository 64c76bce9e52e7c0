"""The timer of a namespace: every entity has its turn, also beside one that fails."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from pairbus.auth.sas import KeyRing
from pairbus.broker.description import QueueDescription
from pairbus.broker.entities.draft import Draft
from pairbus.broker.namespace import Namespace
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.timetable import TIMER_MAX_S, TURN_MAX, Timetable
from tests.broker.test_forward import HandLoop
from tests.sim.loop import VirtualLoop


class Due:
    """An entity that has work to do at once, and then never again."""

    idle_until_ms = None
    closed = False

    def __init__(self, error: Exception | None = None) -> None:
        self.at_ms: int | None = 0
        self.error = error

    def next_due_ms(self) -> int | None:
        return self.at_ms

    def run_due(self, now_ms: int) -> None:
        self.at_ms = None
        if self.error is not None:
            raise self.error


def timetable_on(loop: Any) -> Timetable:
    unused = cast(Any, SimpleNamespace())
    return Timetable(
        "ns",
        unused,
        unused,
        loop=loop,
        now_ms=lambda: 1000,
        used_ms=lambda holder: 0,
        is_forwarding=lambda: False,
    )


def test_failing_entity_does_not_stop_the_others() -> None:
    """The loop reports the bug; the entities behind the failing one have their turn soon."""
    loop: Any = HandLoop()
    timetable = timetable_on(loop)
    entities = [Due(RuntimeError("bug")) if n == 1 else Due() for n in range(4)]
    for entity in entities:
        timetable.changed(cast(Any, entity))
    failures = 0
    while loop.soon or loop.later:
        calls, loop.soon, loop.later = loop.soon + loop.later, [], []
        for call in calls:
            try:
                call()
            except RuntimeError:
                failures += 1
    assert failures == 1
    assert [entity.at_ms for entity in entities] == [None] * 4


def test_due_work_before_its_timer_leaves_no_timer_behind() -> None:
    """A test that moves the clock many times has the work done each time; the timers of earlier times must go."""
    loop: Any = HandLoop()
    timetable = timetable_on(loop)
    timetable.changed(cast(Any, Due()))
    loop.soon.pop()()
    assert len(loop.later) == 1
    timetable.run_due()
    assert loop.later == []


def test_entities_that_fall_due_together_share_the_loop() -> None:
    """Ten thousand queues ran in one turn, in which no client was served."""
    loop: Any = HandLoop()
    timetable = timetable_on(loop)
    entities = [Due() for _ in range(10 * TURN_MAX + 1)]
    for entity in entities:
        timetable.changed(cast(Any, entity))
    left = [len(entities)]
    while loop.soon or loop.later:
        calls, loop.soon, loop.later = loop.soon + loop.later, [], []
        for call in calls:
            call()
        left.append(sum(entity.at_ms is not None for entity in entities))
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) == TURN_MAX


def test_clock_that_jumps_ahead_makes_no_scheduled_message_late() -> None:
    """While a machine sleeps its clock goes on, but not the time of the event loop. A message that fell due in the
    sleep once waited as long again as it had to wait when the machine fell asleep."""
    loop = VirtualLoop(Random(1))
    slept_ms = 0

    async def history() -> None:
        nonlocal slept_ms
        namespace = Namespace(
            "contoso",
            MemoryStore(loop.call_soon),
            KeyRing([]),
            loop=loop,
            now_ms=lambda: 1_790_000_000_000 + round(loop.time() * 1000) + slept_ms,
        )
        await namespace.create(QueueDescription("orders"))
        queue = namespace.catalog.queue("orders")
        answered = loop.create_future()
        now_ms = namespace.now_ms()
        queue.send([Draft(b"later", scheduled_ms=now_ms + 3_600_000)], now_ms, answered.set_result)
        assert await answered is None
        await asyncio.sleep(1800)
        assert (queue.scheduled_count, queue.active_count) == (1, 0)
        slept_ms = 7_200_000
        await asyncio.sleep(TIMER_MAX_S + 1)
        assert (queue.scheduled_count, queue.active_count) == (0, 1)

    try:
        loop.run_until_complete(history())
    finally:
        loop.close()
