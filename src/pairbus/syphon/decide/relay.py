"""Decisions about the messages of a backlog queue: which go home together, which wait, which are dead-lettered.

Laws of this file.
 1. A message leaves the backlog queue only when its destination has accepted it, or when waiting cannot help.
 2. A destination that fails is skipped for the rest of the pass. Its messages stay locked, so that they are not
    received again and again, and the messages behind them move on.
 3. In a lane (a sender's messages of one session) no message overtakes an earlier one that waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from types import MappingProxyType
from typing import NamedTuple

from pairbus.amqp.message import batch_envelope
from pairbus.backlog.envelope import Home
from pairbus.backlog.filing import keys_of
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions, TtlPolicy
from pairbus.pairing.policy import BUSY_WAIT_S, MESSAGE_FAULTS, Failure, Kind
from pairbus.syphon.decide.pace import BATCH_MAX, LOCK_MAX_S, PAUSE_MAX_S

PASS_MAX_S = 60.0  # longest pass, also when messages are left in the queue
CHANCE_S = 15.0  # a pass that skips a destination ends after this time, so that the destination is tried again
MISSING_MEMORY_S = PAUSE_MAX_S + LOCK_MAX_S + PASS_MAX_S  # every syphon with messages for it has tried it again by then
POLL_S = 15 * 60.0
# How long a waiting message is remembered after its lock ended: by then it came back, or another syphon has it.
LANE_MEMORY_S = 300.0
GONE, NOTHING = float("-inf"), float("inf")
LANES_LOOK = 10_000  # lanes with waiting messages, before old ones are looked for
CHUNK_BYTES_MAX = 1 << 20  # of one send, also when the destination would accept more
CHUNK_BYTES = 256 << 10  # of one send, when the destination does not tell its limit
_DATA_HEAD = 8  # bytes around a message in a batch
TEXT_MAX = 1024  # of a description; the service takes 4096 characters

REFUSED, MISSING = "RefusedByDestination", "DestinationMissing"


@dataclass(frozen=True, slots=True)
class SyphonSettings:
    """Options of a syphon; durations in seconds."""

    retry_interval_s: float = 1.0
    missing_destination_grace_s: float = 15 * 60.0
    duplicate_detection_window_s: float = 10 * 60.0
    ttl_policy: TtlPolicy = "restore"
    max_messages_per_second: float | None = None
    batch_max: int = BATCH_MAX
    poll_s: float = POLL_S
    send_timeout_s: float = 10.0

    @classmethod
    def of(cls, options: SendAvailabilityPairedNamespaceOptions) -> SyphonSettings:
        return cls(
            retry_interval_s=options.syphon_retry_interval,
            missing_destination_grace_s=options.missing_destination_grace,
            duplicate_detection_window_s=options.duplicate_detection_window,
            ttl_policy=options.ttl_policy,
            max_messages_per_second=options.max_messages_per_second,
        )


# ── decisions about failures ──


class Fate(Enum):
    SKIP = "skip"
    "Skip the destination for the rest of the pass."
    DEAD_LETTER = "dead-letter"
    "Dead-letter the message; of several that failed together, find the wrong ones first."


FATES: Mapping[Kind, Fate] = MappingProxyType(
    {
        Kind.COMMUNICATION: Fate.SKIP,
        Kind.TIMEOUT: Fate.SKIP,
        Kind.INTERNAL: Fate.SKIP,
        Kind.FULL: Fate.SKIP,
        Kind.BUSY: Fate.SKIP,  # and for ten seconds, in every pass
        Kind.DISABLED: Fate.SKIP,
        Kind.UNAUTHORIZED: Fate.SKIP,  # it may pass: a key was rotated
        Kind.NOT_FOUND: Fate.SKIP,  # until the grace is over: it may be redeployed
        Kind.TOO_LARGE: Fate.DEAD_LETTER,
        Kind.INVALID: Fate.DEAD_LETTER,
    }
)


class Ruling(NamedTuple):
    """The decision about the messages of a failed attempt."""

    fate: Fate
    reason: str
    "Reason of a skip, or of the dead letter."
    description: str = ""


class Destinations:
    """Knowledge about the primary's entities; shared by the pumps of one syphon."""

    def __init__(self, missing_grace_s: float) -> None:
        self._missing_grace_s = missing_grace_s
        self._missing: dict[str, tuple[float, float]] = {}
        "Key of a destination → time since when it is missing, and time when that was seen last."
        self._marked: set[tuple[str, str]] = set()
        "(queue, key of a missing destination) that has a message with the mark."
        self._busy_until: dict[str, float] = {}
        self._no_batches: set[str] = set()

    def closed_because(self, path: str, now: float) -> str | None:
        """Return the reason why no message may be sent to the destination now; None when it may."""
        until = self._busy_until.get(key_of(path))
        if until is None:
            return None
        if now >= until:
            del self._busy_until[key_of(path)]
            return None
        return f"server-busy, left alone for {until - now:.1f}s"

    def delivered(self, path: str) -> None:
        """Note that the destination has accepted a message."""
        if self._missing:
            self._is_there(key_of(path))

    def marked(self, queue: str, path: str, since: float, now: float) -> None:
        """Note the mark of a message: an earlier attempt, perhaps of another process, found the destination missing."""
        key = key_of(path)
        self._marked.add((queue, key))
        known, seen = self._missing.get(key, (since, now))
        self._missing[key] = since if now - seen > MISSING_MEMORY_S else min(known, since), now

    def missing_since(self, path: str) -> float | None:
        """Return the time since when the destination is missing; None when it is not known to be missing."""
        known = self._missing.get(key_of(path))
        return None if known is None else known[0]

    def needs_mark(self, queue: str, path: str) -> bool:
        """Tell whether the destination is missing and no message of the queue has the mark; True once for a queue."""
        place = queue, key_of(path)
        if place[1] not in self._missing or place in self._marked:
            return False
        self._marked.add(place)
        return True

    def _is_there(self, key: str) -> None:
        if self._missing.pop(key, None) is not None:
            self._marked = {place for place in self._marked if place[1] != key}

    def takes_batches(self, path: str) -> bool:
        return key_of(path) not in self._no_batches

    def refuses_batches(self, path: str) -> None:
        """Note that a batch was refused whose messages were accepted one by one: a partitioned entity needs one key."""
        self._no_batches.add(key_of(path))

    def failed(self, path: str, failure: Failure, now: float, *, at_attach: bool = False) -> Ruling:
        """Decide about a failed attempt. `at_attach`: the link was refused, so that no message can be to blame."""
        key, kind = key_of(path), failure.kind
        if kind is Kind.BUSY:
            self._busy_until[key] = now + BUSY_WAIT_S
        if kind is Kind.NOT_FOUND or (at_attach and kind in MESSAGE_FAULTS):
            since, seen = self._missing.get(key, (now, now))
            if now - seen > MISSING_MEMORY_S:
                since = now  # another syphon may have delivered there meanwhile
            self._missing[key] = since, now
            if now - since >= self._missing_grace_s:
                return Ruling(Fate.DEAD_LETTER, MISSING, _missing_text(path, now - since, failure))
            return Ruling(Fate.SKIP, failure.text)
        self._is_there(key)  # any other answer proves that it exists
        if FATES[kind] is Fate.DEAD_LETTER:
            return Ruling(Fate.DEAD_LETTER, REFUSED, _refused_text(path, failure))
        return Ruling(Fate.SKIP, failure.text)


def key_of(path: str) -> str:
    """Return the key of a path: paths are equal in any case."""
    return path.strip("/").lower()


def _missing_text(path: str, missing_s: float, failure: Failure) -> str:
    said = failure.text[:300].rstrip(".")
    return (
        f"'{path}' has been missing for {missing_s:.0f} s: {said}. Create it and re-drive this dead-letter queue, or"
        " discard the message."
    )[:TEXT_MAX]


def _refused_text(path: str, failure: Failure) -> str:
    return (
        f"'{path}' refuses this message, whenever it is sent: {failure.text:.500}. Change the destination's limits and"
        " re-drive this dead-letter queue, or send a changed message by hand."
    )[:TEXT_MAX]


# ── messages that go together ──


class Item(NamedTuple):
    """One message of a batch on its way home."""

    place: int
    "Number of the message, unique on its link."
    home: Home
    payload: bytes
    "Payload to send."


def by_destination(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Return the items of each destination, under its key, in the order of the queue."""
    groups: dict[str, list[Item]] = {}
    path = key = None
    for item in items:
        if item.home.path != path:
            path = item.home.path
            key = key_of(path)
        assert key is not None
        group = groups.get(key)
        if group is None:
            groups[key] = [item]
        else:
            group.append(item)
    return groups


Chunk = list[Item]
"Messages that are sent as one: all are accepted, or none."


def rounds(items: list[Item], size_max: int, *, in_batches: bool) -> list[list[Chunk]]:
    """Plan the messages of one destination: the chunks of a round go together, one round after the other.

    A chunk has messages of one session and partition key, as the service demands. The second chunk of a lane waits for
    the first.
    """
    limit = min(size_max or CHUNK_BYTES, CHUNK_BYTES_MAX)
    found: list[list[Chunk]] = [[]]
    last: dict[object, tuple[Chunk, int, int]] = {}
    for item in items:
        home = item.home
        lane = home.sender is not None
        key = (home.sender, home.session_id, keys_of(item.payload))
        chunk, size, round_no = last.get(key, ([], limit, -1))
        size += len(item.payload) + _DATA_HEAD
        if in_batches and chunk and size <= limit:
            chunk.append(item)
            last[key] = chunk, size, round_no
            continue
        round_no = round_no + 1 if lane else 0
        if round_no == len(found):
            found.append([])
        chunk = [item]
        found[round_no].append(chunk)
        last[key] = chunk, len(batch_envelope(item.payload)) + len(item.payload) + _DATA_HEAD, round_no
    return found


# ── order ──


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
        found, going = [], []
        for item in items:
            counter, waiting = item.home.counter, self._waiting.get(_lane(item.home))
            if counter is None or waiting is None:
                found.append(item)
            elif waiting.first(now) >= counter:
                found.append(item)
                if counter in waiting.until:  # it does not hold back the others of this call
                    going.append((waiting, counter, waiting.until.pop(counter)))
        for waiting, counter, until in going:
            waiting.add(counter, until)
        return found

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
    """Progress of each queue of a syphon, by the secondary's own time: a sender may have changed its queue meanwhile.

    A message of a lane goes only when no other queue can still have an earlier one, except those that wait, which
    `Lanes` knows.
    """

    def __init__(self, queues: Iterable[str]) -> None:
        self._heads = dict.fromkeys(queues, NOTHING_KNOWN)
        "Queue → moment before which it has no message of a lane."
        self._latest = NOTHING_KNOWN
        self._awaited: set[str] = set()

    def reached(self, queue: str, moment: Moment) -> None:
        self._heads[queue] = moment

    def empty(self, queue: str) -> None:
        self._heads[queue] = EMPTY

    def saw(self, moment: Moment) -> None:
        """Note the moment of a message of any queue."""
        self._latest = max(self._latest, moment)

    @property
    def now(self) -> Moment:
        """A moment that is not later than any message stored from now on."""
        ms, sender, counter = self._latest
        return ms, sender, counter + 1

    def may_go(self, queue: str, items: list[Item]) -> int:
        """Return how many of the items, from the first on, may go."""
        others = [(head, other) for other, head in self._heads.items() if other != queue]
        if not others:
            return len(items)
        earliest = min(others)
        for count, item in enumerate(items):
            place = moment_of(item.home), queue
            if place > earliest:
                self._awaited.update(other for head, other in others if place > (head, other))
                return count
        return len(items)

    def was_awaited(self, queue: str) -> bool:
        """Tell whether lanes of other queues have waited for a look at this queue since the last call."""
        if queue not in self._awaited:
            return False
        self._awaited.discard(queue)
        return True


NOTHING_KNOWN: Moment = (float("-inf"), "", 0)
EMPTY: Moment = (float("inf"), "", 0)


# ── dead letters ──


def entity_of_dead_letters(path: str) -> str:
    """Return the entity to which the messages of a dead-letter queue were sent: for a subscription, its topic."""
    segments = path.strip("/").split("/")
    while segments and segments[-1].startswith("$"):
        segments.pop()
    if len(segments) > 2 and segments[-2].lower() == "subscriptions":
        segments = segments[:-2]
    return "/".join(segments)
