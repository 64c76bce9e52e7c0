"""The timer of a namespace: every entity has its turn, also beside one that fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from pairbus.broker.timetable import Timetable
from tests.broker.test_forward import HandLoop


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


def test_failing_entity_does_not_stop_the_others() -> None:
    """The loop reports the bug; the entities behind the failing one have their turn soon."""
    loop: Any = HandLoop()
    unused = cast(Any, SimpleNamespace())
    timetable = Timetable(
        "ns",
        unused,
        unused,
        loop=loop,
        now_ms=lambda: 1000,
        used_ms=lambda holder: 0,
        is_forwarding=lambda: False,
    )
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
