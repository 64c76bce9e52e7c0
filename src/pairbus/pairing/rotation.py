"""Backlog queues: their names, and which of them a sender may use.

Laws of the rotation.
 1. A sender picks one queue at random, once, and keeps it while it works.
 2. A queue that fails is out for every sender of the client, and comes back after `retry_interval_s`.
 3. Short silences of a queue add up until it accepts a send, and take it out when they are as long as a failure: a slow
    queue must stay, and a silent one must not stay because every caller has little time.
 4. When every queue is out, no queue can be picked: the caller decides what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pairbus.pairing.events import BacklogQueueBack, BacklogQueueFailed, Event

INFIX = "x-servicebus-transfer"
MAX_SIZE_MB = 5120
MAX_DELIVERY_COUNT = 2147483647
LOCK_DURATION_S = 60.0


def queue_path(primary_name: str, index: int) -> str:
    return f"{primary_name}/{INFIX}/{index}"


def queue_index(primary_name: str, path: str) -> int | None:
    """Return the index of the backlog queue with this path; None when it is not one of this primary."""
    prefix = f"{primary_name}/{INFIX}/".lower()
    number = path[len(prefix) :]
    if (
        not path.lower().startswith(prefix)
        or not (number.isascii() and number.isdecimal())
        or (number[0] == "0" and number != "0")
    ):
        return None
    return int(number)


def primary_of(path: str) -> str | None:
    """Return the name of the primary whose backlog queue has this path; None when it is not a backlog queue."""
    name = path[: max(path.lower().find(f"/{INFIX}/"), 0)]
    return name if name and queue_index(name, path) is not None else None


class Rotation:
    """The backlog queues of one client. `choose` picks an index below the number of candidates, random or by a seed."""

    def __init__(self, queues: list[str], retry_interval_s: float, choose: Callable[[int], int]) -> None:
        self.queues = queues
        "Paths of the queues that were found or created."
        self._retry_interval_s = retry_interval_s
        self._choose = choose
        self._out: dict[str, float] = {}
        "Path of a queue that is out → time when it comes back."
        self._silent: dict[str, tuple[float, float]] = {}
        "Path of a queue → (seconds of its short silences since it last accepted a send, end of the last of them)."
        self.is_lost = False
        "True: the secondary was closed or faulted, so no queue can be used any more."

    def __repr__(self) -> str:
        return f"<Rotation {self}>"

    def __str__(self) -> str:
        """Return queues in rotation / queues found or created."""
        return f"{len(self.queues) - len(self._out)}/{len(self.queues)}"

    def pick(self, kept: str | None, now: float) -> tuple[str | None, list[Event]]:
        """Return the sender's own queue while it is in rotation, otherwise another one; None when none is left."""
        if self.is_lost:
            return None, []
        events = self._heal(now)
        if kept is not None and kept not in self._out:
            return kept, events
        candidates = [queue for queue in self.queues if queue not in self._out]
        if not candidates:
            return None, events
        return candidates[self._choose(len(candidates))], events

    @property
    def can_divert(self) -> bool:
        """True when there are queues, in rotation or out of it, and the secondary is not lost."""
        return bool(self.queues) and not self.is_lost

    @property
    def is_whole(self) -> bool:
        """True when no queue is out of rotation."""
        return not self._out and not self.is_lost

    @property
    def has_choice(self) -> bool:
        """True when more than one queue is in rotation."""
        return len(self.queues) - len(self._out) > 1

    def another(self, queue: str) -> str | None:
        """Return a queue in rotation other than this one; None when there is none."""
        others = [each for each in self.queues if each not in self._out and each != queue]
        return others[self._choose(len(others))] if others else None

    def has(self, queue: str) -> bool:
        """Return True when the queue is in rotation."""
        return queue not in self._out

    def failed(self, queue: str, reason: str, now: float) -> list[Event]:
        known = queue in self._out
        self._silent.pop(queue, None)
        self._out[queue] = now + self._retry_interval_s
        return [] if known else [BacklogQueueFailed(queue, reason, self._retry_interval_s)]

    def fell_silent(self, queue: str, silence_s: float, enough_s: float, reason: str, now: float) -> list[Event]:
        """Note that a send met a silence that ends now. The queue fails when its silences are `enough_s` together."""
        before_s, until = self._silent.get(queue, (0.0, -math.inf))
        total_s = before_s + min(silence_s, now - until)  # sends at the same time meet one silence
        if total_s >= enough_s:
            return self.failed(queue, reason, now)
        self._silent[queue] = total_s, now
        return []

    def accepted(self, queue: str) -> list[Event]:
        """Put the queue back: a send that began before the queue went out proves that it works."""
        self._silent.pop(queue, None)
        return [] if self._out.pop(queue, None) is None else [BacklogQueueBack(queue)]

    def _heal(self, now: float) -> list[Event]:
        if not self._out:
            return []
        healed = [queue for queue, until in self._out.items() if until <= now]
        for queue in healed:
            del self._out[queue]
        return [BacklogQueueBack(queue) for queue in healed]
