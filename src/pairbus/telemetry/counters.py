"""Counters of a paired client: plain numbers, read by `repr`, telemetry and progress lines.

The engine adds to `sent` and `failed` itself; rarer changes come through `Counters.note`. Only the engine's event
loop adds; any thread may call `snapshot` at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import TypedDict

from pairbus.pairing import events

HEALTHY, SUSPECT, FAILED_OVER, HELD_OVER = "HEALTHY", "SUSPECT", "FAILED_OVER", "HELD_OVER"
SPOOL = "spool"  # `Diverted.queue` when no backlog queue took the message


class Snapshot(TypedDict):
    """Values of the counters at one time."""

    entities: dict[str, dict[str, int | str]]
    queues: dict[str, dict[str, int | bool]]
    total: dict[str, int]
    spool_depth: int
    out_of_rotation: int
    processors: dict[str, dict[str, int]]
    "Path → sums of all processors of the client, those that have ended included."


class EntityCounts:
    """Counts of one entity of the primary. A message is counted in one of `sent`, `diverted` and `spooled`."""

    __slots__ = ("diverted", "failed", "failovers", "path", "pings", "recovered", "sent", "spooled", "state")

    def __init__(self, path: str) -> None:
        self.path = path
        self.state = HEALTHY
        self.sent = 0
        "Messages that the primary accepted."
        self.diverted = 0
        "Messages that a backlog queue accepted."
        self.spooled = 0
        "Messages that the local spool took."
        self.failed = 0
        "Messages whose send ended with an error for its caller."
        self.pings = 0
        self.failovers = 0
        self.recovered = 0
        "Failovers that ended; the end of a mere suspicion does not count."


class QueueCounts:
    """Counts of one backlog queue of the secondary."""

    __slots__ = ("dead_lettered", "failed", "moved", "out_of_rotation", "path", "stored")

    def __init__(self, path: str) -> None:
        self.path = path
        self.out_of_rotation = False
        self.stored = 0
        self.failed = 0
        "Times that the queue was taken out of rotation."
        self.moved = 0
        self.dead_lettered = 0


ENTITY_FIELDS = ("sent", "diverted", "spooled", "failed", "pings", "failovers", "recovered")
QUEUE_FIELDS = ("stored", "failed", "moved", "dead_lettered")
PROCESSOR_FIELDS = (
    *("active", "waiting", "handled", "failed", "completed", "retried", "dead_lettered", "deferred", "abandoned"),
    *("released", "locks_lost", "renewals"),
)
NOW_FIELDS = ("active", "waiting")
"Fields of a processor that tell the present, not a sum since its start."
ProcessorLook = Callable[[], tuple[str, dict[str, int]]]
"Function that returns path and numbers of a processor."


class Counters:
    """Counters of one client. `spool_depth` returns the messages that wait in the spool, earlier clients' included."""

    def __init__(self, spool_depth: Callable[[], int] = lambda: 0) -> None:
        self._entities: dict[str, EntityCounts] = {}
        self._queues: dict[str, QueueCounts] = {}
        self._processors: dict[int, ProcessorLook] = {}
        self._ended_processors: dict[str, dict[str, int]] = {}
        self._ids = count()
        self.spool_depth = spool_depth

    def add_processor(self, look: ProcessorLook) -> Callable[[], None]:
        """Count a processor. Return the function to call when it has ended: its sums are kept."""
        key = next(self._ids)
        self._processors[key] = look

        def ended() -> None:
            path, numbers = look()
            kept = self._ended_processors.setdefault(path, {})
            for name in PROCESSOR_FIELDS:
                if name not in NOW_FIELDS:
                    kept[name] = kept.get(name, 0) + numbers[name]
            self._processors.pop(key, None)

        return ended

    def _processor_sums(self) -> dict[str, dict[str, int]]:
        sums = {path: dict.fromkeys(PROCESSOR_FIELDS, 0) | kept for path, kept in list(self._ended_processors.items())}
        for look in list(self._processors.values()):
            path, numbers = look()
            known = sums.setdefault(path, dict.fromkeys(PROCESSOR_FIELDS, 0))
            for name in PROCESSOR_FIELDS:
                known[name] += numbers[name]
        return sums

    def entity(self, path: str) -> EntityCounts:
        """Return the counts of an entity. Its path is case-insensitive, and shown as it was first written."""
        key = path.lower()
        return self._entities.get(key) or self._entities.setdefault(key, EntityCounts(path))

    def queue(self, path: str) -> QueueCounts:
        key = path.lower()
        return self._queues.get(key) or self._queues.setdefault(key, QueueCounts(path))

    def diverted(self, path: str, queue: str, count: int) -> None:
        self.entity(path).diverted += count
        self.queue(queue).stored += count

    def note(self, event: events.Event) -> None:  # noqa: PLR0912 - one branch for each case
        """Count an event. Events that change no counter are ignored."""
        match event:  # the most frequent events first
            case events.Diverted(path=path, queue=queue, count=count):
                if queue != SPOOL:  # `Spooled` counts these
                    self.diverted(path, queue, count)
            case events.Moved(queue=queue, count=count):
                self.queue(queue).moved += count
            case events.Suspected(path=path):
                self.entity(path).state = SUSPECT
            case events.FailedOver(path=path, forced=forced):
                entity = self.entity(path)
                entity.state = HELD_OVER if forced else FAILED_OVER
                entity.failovers += 1
            case events.Recovered(path=path):
                entity = self.entity(path)
                entity.recovered += entity.state in (FAILED_OVER, HELD_OVER)
                entity.state = HEALTHY
            case events.PingSent(path=path):
                self.entity(path).pings += 1
            case events.Spooled(path=path, count=count):
                self.entity(path).spooled += count
            case events.DeadLettered(queue=queue):
                self.queue(queue).dead_lettered += 1
            case events.BacklogQueueFailed(queue=queue):
                failed = self.queue(queue)
                failed.out_of_rotation = True
                failed.failed += 1
            case events.BacklogQueueBack(queue=queue):
                self.queue(queue).out_of_rotation = False
            case events.PairingCleared():
                for entity in self._entities.values():
                    entity.state = HEALTHY
                for each in self._queues.values():
                    each.out_of_rotation = False

    def snapshot(self) -> Snapshot:
        """Return all counters. `total` has the sums of all entities; sums of the queues begin with `backlog_`."""
        entities, queues = list(self._entities.values()), list(self._queues.values())
        return {
            "entities": {each.path: {"state": each.state, **_numbers(each, ENTITY_FIELDS)} for each in entities},
            "queues": {
                each.path: {"out_of_rotation": each.out_of_rotation, **_numbers(each, QUEUE_FIELDS)} for each in queues
            },
            "total": _sums(entities, ENTITY_FIELDS, "") | _sums(queues, QUEUE_FIELDS, "backlog_"),
            "spool_depth": self.spool_depth(),
            "out_of_rotation": sum(each.out_of_rotation for each in queues),
            "processors": self._processor_sums(),
        }


def _numbers(counts: object, names: tuple[str, ...]) -> dict[str, int]:
    return {name: getattr(counts, name) for name in names}


def _sums(all_counts: Iterable[object], names: tuple[str, ...], prefix: str) -> dict[str, int]:
    counted = list(all_counts)
    return {prefix + name: sum(getattr(each, name) for each in counted) for name in names}
