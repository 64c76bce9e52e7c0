"""Facts of `pairbus status` and the texts for them. No clock and no network: `status_look` gathers the facts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import Message
from pairbus.backlog.aliases import PATH
from pairbus.cli.pair.status_clients import (
    HEALTHY,
    EntityState,
    ProcessorState,
    ReceiverState,
    lines_of_clients,
    lines_of_processors,
    lines_of_receivers,
)
from pairbus.cli.pair.status_next import next_step
from pairbus.cli.pair.status_syphons import Syphoning, lines_of
from pairbus.cli.pipeline.telling import many
from pairbus.pairing.rotation import queue_index, queue_path

LABEL_MAX = 120  # characters of a path or reason that are shown
LABELS_MAX = 10  # paths or reasons in one line
NO_DESTINATION = "(no destination)"
NO_REASON = "(no reason)"
UNREADABLE = "(unreadable message)"
COLUMNS = ("queue", "messages", "oldest", "dead_letters", "in_rotation")

Label = Callable[[Message], str]


@dataclass(frozen=True, slots=True)
class Reached:
    """Answer of one namespace to an attempt to open a connection."""

    name: str
    seconds: float
    error: str | None = None

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.name} opens a connection in {self.seconds * 1000:.0f} ms"
        return f"{self.name} away: {self.error} (after {self.seconds:.1f} s)"


@dataclass(slots=True)
class PeekedMessages:
    """Messages of one queue, or of its dead-letter queue, that were peeked."""

    looked_at: int = 0
    is_all: bool = False
    "True when the end of the queue was reached."
    oldest_ms: int | None = None
    "Time at which the oldest of them was enqueued, in milliseconds since 1970."
    labels: Counter[str] = field(default_factory=Counter)
    "Number of messages by destination or dead-letter reason."

    def add(self, payloads: Iterable[bytes], label: Label) -> None:
        """Count messages as they were peeked."""
        for payload in payloads:
            self.looked_at += 1
            try:
                message = Message.decode(payload)
            except ProtocolError:
                self.labels[UNREADABLE] += 1
                continue
            self.labels[label(message)] += 1
            enqueued = (message.annotations or {}).get("x-opt-enqueued-time")
            if isinstance(enqueued, int):
                self.oldest_ms = min(int(enqueued), self.oldest_ms or int(enqueued))


def destination_of(message: Message) -> str:
    """Return the path to which a message of a backlog queue goes."""
    return _printable(message.property(PATH), NO_DESTINATION)


def reason_of(message: Message) -> str:
    """Return the reason of a dead letter."""
    return _printable(message.property("DeadLetterReason"), NO_REASON)


def _printable(text: object, otherwise: str) -> str:
    if not isinstance(text, str) or not text:
        return otherwise
    return "".join(char if char.isprintable() else "?" for char in text[:LABEL_MAX])


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """One backlog queue. The counts are None when the secondary does not say them."""

    path: str
    messages: int | None = None
    dead_letters: int | None = None
    waiting: PeekedMessages = field(default_factory=PeekedMessages)
    dead: PeekedMessages = field(default_factory=PeekedMessages)
    error: str | None = None
    "Reason why the messages could not be peeked."

    @property
    def counts(self) -> tuple[int, int]:
        """Messages and dead letters; without counts, as many as were peeked."""
        return (
            self.waiting.looked_at if self.messages is None else self.messages,
            self.dead.looked_at if self.dead_letters is None else self.dead_letters,
        )

    @property
    def is_exact(self) -> bool:
        """True when `counts` are exact, not lower bounds."""
        return (self.messages is not None or self.waiting.is_all) and (
            self.dead_letters is not None or self.dead.is_all
        )


@dataclass(frozen=True, slots=True)
class Status:
    """A pair at one moment."""

    time_s: float
    primary: Reached
    secondary: Reached
    primary_name: str
    rotation: int
    "Clients use the backlog queues 0 … rotation-1."
    queues: tuple[QueueFacts, ...] = ()
    other_primaries: tuple[str, ...] = ()
    "Names of other primaries whose backlog queues are in the secondary, when this one has none."
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    syphons: tuple[Syphoning, ...] = ()
    "Syphons of this pair that run on this machine, as this user."
    clients: int = 0
    "Clients of this pair that are seen on this machine."
    entities: tuple[EntityState, ...] = ()
    "Entities to which these clients send."
    processors: tuple[ProcessorState, ...] = ()
    "Processors of these clients."
    receivers: tuple[ReceiverState, ...] = ()
    "Receivers of these clients."

    @property
    def counts(self) -> tuple[int, int]:
        """Messages and dead letters of all backlog queues."""
        counts = [queue.counts for queue in self.queues]
        return sum(count for count, _ in counts), sum(count for _, count in counts)

    @property
    def is_exact(self) -> bool:
        """True when `counts` are exact, not lower bounds."""
        return self.secondary.error is None and all(queue.is_exact for queue in self.queues)

    @property
    def is_quiet(self) -> bool:
        """True when both sides answer, clients send to the primary, no message waits and there is no problem."""
        away = self.primary.error is not None or self.secondary.error is not None
        away = away or any(entity.state != HEALTHY for entity in self.entities)
        return not away and not self.problems and self.is_exact and self.counts == (0, 0)

    @property
    def missing(self) -> list[str]:
        """Queues of the rotation that do not exist."""
        numbers = {queue_index(self.primary_name, queue.path) for queue in self.queues}
        if not numbers:
            return []
        return [queue_path(self.primary_name, index) for index in range(self.rotation) if index not in numbers]

    def is_beyond(self, queue: QueueFacts) -> bool:
        """Tell whether no client of the pair uses this queue."""
        index = queue_index(self.primary_name, queue.path)
        return index is not None and index >= self.rotation

    def age_s(self, sample: PeekedMessages) -> float | None:
        """Return for how long the oldest message has been there; a clock that is behind makes it 0."""
        return None if sample.oldest_ms is None else max(self.time_s - sample.oldest_ms / 1000, 0.0)

    @property
    def oldest_s(self) -> float | None:
        ages = [age for queue in self.queues if (age := self.age_s(queue.waiting)) is not None]
        return max(ages, default=None)


@dataclass(frozen=True, slots=True)
class CountChange:
    """Difference of the counts of two looks."""

    seconds: float
    messages: int

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds

    def __str__(self) -> str:
        if not self.messages:
            return f"no change in {self.seconds:.0f} s"
        verb = "more" if self.messages > 0 else "fewer"
        return f"{many(abs(self.messages), 'message')} {verb} in {self.seconds:.1f} s, {abs(self.per_s):.1f} a second"


def change_of(before: Status | None, now: Status) -> CountChange | None:
    """Compare two looks; None when one of them has no exact counts."""
    if before is None or not before.is_exact or not now.is_exact or now.time_s <= before.time_s:
        return None
    return CountChange(now.time_s - before.time_s, now.counts[0] - before.counts[0])


# ── words ──


def heading(status: Status) -> list[str]:
    """Return the time, a line for each side, and the states of the clients."""
    tried = "" if status.primary.error is not None else "; no message was sent to it"
    return [
        moment(status.time_s),
        f"primary {status.primary}{tried}",
        f"secondary {status.secondary}",
        *lines_of_clients(status.clients, status.entities, status.time_s),
        *lines_of_processors(status.processors, status.time_s),
        *lines_of_receivers(status.receivers, status.time_s),
    ]


def rows(status: Status) -> list[tuple[object, ...]]:
    """Return a row of `COLUMNS` for each backlog queue."""
    return [
        (
            queue.path,
            _at_least(queue.counts[0], is_exact=queue.messages is not None or queue.waiting.is_all),
            duration(status.age_s(queue.waiting)),
            _at_least(queue.counts[1], is_exact=queue.dead_letters is not None or queue.dead.is_all),
            "no" if status.is_beyond(queue) else "yes",
        )
        for queue in status.queues
    ]


def summary(status: Status, change: CountChange | None) -> list[str]:
    """Return the lines behind the table."""
    messages, dead_letters = status.counts
    lines = []
    if status.queues:
        prefix = "" if status.is_exact else "at least "
        age = "" if status.oldest_s is None else f", the oldest for {duration(status.oldest_s)}"
        lines.append(f"waiting: {prefix}{many(messages, 'message')}{age}; {many(dead_letters, 'dead letter')}")
        lines += _labels("destinations", [queue.waiting for queue in status.queues], messages)
        lines += _labels("dead letters by reason", [queue.dead for queue in status.queues], dead_letters)
    if change is not None:
        lines.append(f"since the last look: {change} (moved by syphons less newly diverted)")
    lines += lines_of(status.syphons)
    if status.missing:
        numbers = _some([path.rpartition("/")[2] for path in status.missing])
        lines.append(f"missing of queues 0 … {status.rotation - 1}: {numbers}; `pairbus pair create` creates them")
    lines += [f"note: {note}" for note in status.notes]
    lines += [f"problem: {problem}" for problem in status.problems]
    return [*lines, f"next: {next_step(status, change)}"]


def _labels(what: str, samples: list[PeekedMessages], count: int) -> list[str]:
    total: Counter[str] = sum((sample.labels for sample in samples), Counter())
    looked_at = sum(sample.looked_at for sample in samples)
    if not looked_at:
        return []
    shown = _some([f"{label} {number}" for label, number in total.most_common()])
    is_all = looked_at >= count and all(sample.is_all or not sample.looked_at for sample in samples)
    bound = "" if is_all else f" (the first {looked_at} looked at)"
    return [f"{what}: {shown}{bound}"]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - LABELS_MAX} more" if len(names) > LABELS_MAX else ""
    return ", ".join(names[:LABELS_MAX]) + more


def _at_least(count: int, *, is_exact: bool) -> int | str:
    return count if is_exact else f"≥{count}"


def duration(seconds: float | None) -> str:
    """Return a length of time in its two largest units."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    for size, unit, smaller, small_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {small_unit}"
    return f"{whole} s"


def moment(time_s: float) -> str:
    """Return a time as RFC 3339 writes it, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))


# ── JSON ──


def as_json(status: Status, change: CountChange | None) -> dict[str, Any]:
    messages, dead_letters = status.counts
    return {
        "time": moment(status.time_s),
        "quiet": status.is_quiet,
        "primary": _side_json(status.primary),
        "secondary": _side_json(status.secondary),
        "primary_name": status.primary_name,
        "messages": messages,
        "dead_letters": dead_letters,
        "exact": status.is_exact,
        "oldest_s": status.oldest_s,
        "change": None
        if change is None
        else {"seconds": change.seconds, "messages": change.messages, "per_second": change.per_s},
        "clients_on_this_machine": status.clients,
        "entities": [entity.as_json() for entity in status.entities],
        "processors": [each.as_json() for each in status.processors],
        "receivers": [each.as_json() for each in status.receivers],
        "next": next_step(status, change),
        "syphons_on_this_machine": [syphon.as_json() for syphon in status.syphons],
        "queues": [_queue_json(status, queue) for queue in status.queues],
        "missing": status.missing,
        "notes": list(status.notes),
        "problems": list(status.problems),
    }


def _side_json(side: Reached) -> dict[str, Any]:
    return {"name": side.name, "reachable": side.error is None, "seconds": side.seconds, "error": side.error}


def _queue_json(status: Status, queue: QueueFacts) -> dict[str, Any]:
    return {
        "path": queue.path,
        "messages": queue.counts[0],
        "dead_letters": queue.counts[1],
        "exact": queue.is_exact,
        "in_rotation": not status.is_beyond(queue),
        "oldest_s": status.age_s(queue.waiting),
        "peeked": queue.waiting.looked_at,
        "destinations": dict(queue.waiting.labels),
        "peeked_dead_letters": queue.dead.looked_at,
        "dead_letter_reasons": dict(queue.dead.labels),
        "error": queue.error,
    }
