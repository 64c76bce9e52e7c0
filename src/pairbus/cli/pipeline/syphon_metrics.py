"""The page of metrics of `pairbus syphon --metrics`: messages that it moved, that had to stay, and that wait."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from pairbus.pairing.events import DestinationSkipped, Event, Moved
from pairbus.syphon import SyphonProgress
from pairbus.telemetry.counters import HEALTHY, SUSPECT, Counters
from pairbus.telemetry.metrics.serving import TOKEN_VARIABLE, MetricsPort, place_of
from pairbus.telemetry.metrics.text import Family, labels
from pairbus.telemetry.prometheus import client_families

OF_CLIENTS = ("pairbus.moved.messages", "pairbus.dead_lettered.messages", "pairbus.entity.state")
LookAtProgress = Callable[[], tuple[SyphonProgress, int | None]]
"Returns the progress of the syphon, and how many messages wait; None when that is not known."


class SyphonMetrics:
    """Counts of one syphon, and the port that serves them."""

    def __init__(self, place: str, secondary: str, look: LookAtProgress) -> None:
        """Read the place of the page. ConfigError: `place` is neither PORT nor HOST:PORT, or needs a token."""
        self._secondary = secondary
        self._look = look
        self._counters = Counters()
        self.port = MetricsPort(*place_of(place), os.environ.get(TOKEN_VARIABLE), self.families)

    def heard(self, event: Event) -> None:
        """Count an event; a destination is suspect from its failure until messages of it come home."""
        self._counters.note(event)
        match event:
            case DestinationSkipped(path=path):
                self._counters.entity(path).state = SUSPECT
            case Moved(path=path):
                self._counters.entity(path).state = HEALTHY

    def families(self) -> Iterator[Family]:
        """Yield every family of the page."""
        now, waiting = self._look()
        yield from client_families([(self._secondary, self._counters.snapshot())], OF_CLIENTS)
        of = labels(namespace_name=self._secondary)
        text = "Messages that left the backlog queues, by what became of them."
        results = (("moved", now.moved), ("dead_lettered", now.dead_lettered))
        samples = [("", labels(namespace_name=self._secondary, result=result), count) for result, count in results]
        yield Family("pairbus_syphon_messages_total", "counter", text, samples)
        yield Family("pairbus_syphon_errors_total", "counter", "Failed attempts.", [("", of, now.errors)])
        gauges = (
            ("pairbus_syphon_queues", "Backlog queues that are drained.", now.queues),
            ("pairbus_syphon_rate", "Messages moved a second, over the last seconds.", now.per_s),
            ("pairbus_syphon_blocked_messages", "Messages that wait for their destination.", now.blocked),
            ("pairbus_syphon_uncompleted_messages", "Messages at home that are still in their queue.", now.uncompleted),
            ("pairbus_primary_reachable", "0 while no connection to the primary can be opened.", int(not now.is_away)),
            ("pairbus_backlog_messages", "Messages in the backlog queues; not shown while unknown.", waiting),
        )
        for name, text, value in gauges:
            if value is not None:
                yield Family(name, "gauge", text, [("", of, value)])
