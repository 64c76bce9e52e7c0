"""Keeps the last events of one page, numbered, whether somebody watches or not.

`EventRecorder` writes the log of a broker's page until the first browser comes: it needs neither the page nor other
processes, and costs nothing while nothing changes. From then on the watch of the page writes it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from pairbus.broker.monitoring.overview import overview
from pairbus.dashboard.news import Happening, happenings, without_nulls
from pairbus.errors import PairbusError

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace

EVENTS_MAX = 300
PAUSE_S = 1.0  # between two looks of a recorder
REST = 200  # a pause is also so many times as long as the look before it: half a percent of a core at most


class EventLog:
    """The last events of a page."""

    def __init__(self) -> None:
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._number = 0

    def note(self, happening: Happening) -> dict[str, Any]:
        """Add an event; return it as JSON."""
        self._number += 1
        entry = {
            "number": self._number,
            "time_ms": int(time.time() * 1000),
            **without_nulls(
                {
                    "kind": happening.kind,
                    "tone": happening.tone,
                    "text": happening.text,
                    "namespace": happening.namespace,
                    "entity": happening.entity,
                }
            ),
        }
        self.events.append(entry)
        return entry


class EventRecorder:
    """Writes the events of a namespace of this process as the namespace tells its changes."""

    def __init__(self, namespace: Namespace) -> None:
        self.log = EventLog()
        self._namespace = namespace
        self._loop = asyncio.get_running_loop()
        self._look = self._taken()
        self._rested_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_following = False
        try:
            namespace.changes.follow(self._hear)
            self._is_following = True
        except PairbusError:
            pass  # too many follow already; the watch of the page will look without being told

    def close(self) -> dict[str, Any]:
        """Stop, and return the last look."""
        if self._is_following:
            self._is_following = False
            self._namespace.changes.leave(self._hear)
        if self._timer is not None:
            self._timer.cancel()
            self._record()
        return self._look

    def _hear(self) -> None:
        if self._timer is None and not self._namespace.changes.is_over:
            self._timer = self._loop.call_at(max(self._loop.time(), self._rested_at_s), self._record)

    def _record(self) -> None:
        self._timer = None
        began_s = self._loop.time()
        before, self._look = self._look, self._taken()
        for happening in happenings(before, self._look):
            self.log.note(happening)
        ended_s = self._loop.time()
        self._rested_at_s = ended_s + max(PAUSE_S, REST * (ended_s - began_s))

    def _taken(self) -> dict[str, Any]:
        return {"namespaces": {self._namespace.name: overview(self._namespace)}}
