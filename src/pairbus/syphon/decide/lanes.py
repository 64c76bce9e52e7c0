"""Decides about order: in a lane, a sender's messages of one session, no message overtakes an earlier one.

`Lanes` knows the messages of lanes that wait under their locks. `Tide` knows how far each backlog queue is read: a
sender whose backlog queue failed goes on with another one, so that a lane may be in two queues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import heappop, heappush

from pairbus.backlog.envelope import Home
from pairbus.syphon.decide.batch import Item
from pairbus.syphon.decide.destinations import key_of
from pairbus.syphon.decide.pace import BATCH_MAX

# How long a waiting message is remembered after its lock ended: by then it came back, or another syphon has it.
LANE_MEMORY_S = 300.0
GONE, NOTHING = float("-inf"), float("inf")
LANES_LOOK = 10_000  # lanes with waiting messages, before old ones are looked for

Lane = tuple[str, str | None, str]
"(sender, session, key of the destination)"


class _Waiting:
    """The messages of one lane that wait. The first of them is found without a look at the others: a destination that
    is away for a day may have a hundred thousand messages of one sender."""

    __slots__ = ("_heap", "until")

    def __init__(self) -> None:
        self.until: dict[int, float] = {}
        "Counter → time until which it is remembered."
        self._heap: list[int] = []
        "Heap of the counters; removed counters stay in it until they come to its top, or there are too many."

    def add(self, counter: int, until: float) -> None:
        if counter not in self.until:
            heappush(self._heap, counter)
        self.until[counter] = until
        if len(self._heap) > 2 * len(self.until) + BATCH_MAX:
            self._heap = sorted(self.until)

    def first(self, now: float) -> float:
        heap, until = self._heap, self.until
        while heap and until.get(heap[0], GONE) < now:
            until.pop(heappop(heap), None)
        return heap[0] if heap else NOTHING


class Lanes:
    """Messages that wait, of senders that keep order: no later message of the same lane may go before them."""

    def __init__(self) -> None:
        self._waiting: dict[Lane, _Waiting] = {}
        self._forget_at = LANES_LOOK

    def ready(self, items: list[Item], now: float) -> list[Item]:
        """Return the items that may go: items that waited before them go with them."""
        if not self._waiting:
            return items
        ready, leaving = [], []
        for item in items:
            counter, waiting = item.home.counter, self._waiting.get(_lane(item.home))
            if counter is None or waiting is None:
                ready.append(item)
            elif waiting.first(now) >= counter:
                ready.append(item)
                if counter in waiting.until:  # it does not hold back the others of this call
                    leaving.append((waiting, counter, waiting.until.pop(counter)))
        for waiting, counter, until in leaving:
            waiting.add(counter, until)
        return ready

    def waits(self, home: Home, locked_until: float, now: float) -> None:
        if home.sender is None or home.counter is None:
            return
        if len(self._waiting) >= self._forget_at:
            self._forget(now)
        self._waiting.setdefault(_lane(home), _Waiting()).add(home.counter, locked_until + LANE_MEMORY_S)

    def gone(self, home: Home) -> None:
        if home.counter is None:
            return
        waiting = self._waiting.get(_lane(home))
        if waiting is not None:
            waiting.until.pop(home.counter, None)
            if not waiting.until:
                del self._waiting[_lane(home)]

    def _forget(self, now: float) -> None:
        """Forget lanes whose messages did not come back. Called when the number of lanes has doubled."""
        for lane, waiting in list(self._waiting.items()):
            if all(until < now for until in waiting.until.values()):
                del self._waiting[lane]
        self._forget_at = max(LANES_LOOK, 2 * len(self._waiting))


def _lane(home: Home) -> Lane:
    return home.sender or "", home.session_id, key_of(home.path)


Moment = tuple[float, str, int]
"(milliseconds of the secondary, sender, counter): within a millisecond the sender's counter decides."


def moment_of(home: Home) -> Moment:
    return home.enqueued_ms or 0, home.sender or "", home.counter or 0


class Tide:
    """How far each queue of a syphon is read, by the secondary's own time.

    A message of a lane goes only when no other queue can still have an earlier one, except those that wait, which
    `Lanes` knows.
    """

    def __init__(self) -> None:
        self._read: dict[str, Moment] = {}
        "Queue → moment before which it has no message of a lane that is still to be received or sent."
        self._latest = NOTHING_KNOWN
        self._awaited: set[str] = set()

    def saw(self, items: Iterable[Item]) -> None:
        """Note the moments of messages of any queue."""
        for item in items:
            self._latest = max(self._latest, moment_of(item.home))

    def read_to(self, queue: str, item: Item) -> None:
        """Note that the queue has no message of a lane before this one."""
        self._read[queue] = moment_of(item.home)

    def passed(self, queue: str, item: Item) -> None:
        """Note a message without order: it never sets the time back, because it may be received again."""
        self._read[queue] = max(self._read.get(queue, NOTHING_KNOWN), moment_of(item.home))

    def read_to_end(self, queue: str) -> None:
        """Note that the queue is empty: messages that are stored from now on are later than all that were seen."""
        ms, sender, counter = self._latest
        self._read[queue] = max(self._read.get(queue, NOTHING_KNOWN), (ms, sender, counter + 1))

    def may_go(self, items: list[Item], queue: str, others: Collection[str]) -> int:
        """Return how many of the items of a queue, from the first on, may go. `others`: queues that are not empty."""
        if not others:
            return len(items)
        moments = [(self._read.get(other, NOTHING_KNOWN), other) for other in others]
        earliest = min(moments)
        for count, item in enumerate(items):
            place = moment_of(item.home), queue
            if place > earliest:
                self._awaited.update(other for head, other in moments if place > (head, other))
                return count
        return len(items)

    def was_awaited(self, queue: str) -> bool:
        """Tell whether lanes of other queues have waited for a look at this queue since the last call."""
        if queue not in self._awaited:
            return False
        self._awaited.discard(queue)
        return True


NOTHING_KNOWN: Moment = (float("-inf"), "", 0)
