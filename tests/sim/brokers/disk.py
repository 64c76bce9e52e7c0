"""The disk of a simulated broker: groups of writes are committed like `SqliteStore` does it, in virtual time.

From the moment when the writer gets a group to its commit the group may be lost with the process or not; from the
commit to the moment when the broker hears of it, it is there and nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from pairbus.broker.entities.session_service import state_size
from pairbus.broker.store import (
    UNLIMITED,
    Done,
    Hindrance,
    IndexRow,
    Insert,
    InsertPayload,
    Loaded,
    Move,
    PayloadRow,
    PutEntity,
    RecoveredStore,
    SetSessionState,
    StateRow,
    StoredMessage,
    Write,
)
from pairbus.broker.store.backup import Backup
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.store.units import Units
from pairbus.errors import StoreError

if TYPE_CHECKING:
    from tests.sim.brokers.process import ProcessLoop

Row = tuple[int, StoredMessage]
"(box, message)"


class Platter(MemoryStore):
    """The committed state, which outlives every process."""

    def __init__(self, descriptions: Sequence[str]) -> None:
        super().__init__()
        self.last_n = 0
        "The highest number that was ever committed."
        error = self.apply([PutEntity(number, text) for number, text in enumerate(descriptions, 1)])
        assert error is None, error

    def apply(self, writes: list[Write]) -> StoreError | None:
        """Carry a group out, whole or not at all."""
        error = self._apply_all(writes)
        if error is None:
            self.last_n = max([self.last_n, *(_highest(op) for op in writes)])
        return error

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    @property
    def payload_count(self) -> int:
        return len(self._payloads)

    def payload_bytes(self, number: int) -> int:
        """The size of a payload; 0: it is not there."""
        return len(self._payloads[number][1]) if number in self._payloads else 0

    def state_bytes(self, entity_id: int) -> int:
        states = [row for row in self._states.values() if row.entity_id == entity_id]
        return sum(state_size(row.session_id, len(row.state)) for row in states if row.state is not None)


def _highest(op: Write) -> int:
    match op:
        case Insert(_, messages):
            return max((message.n for message in messages), default=0)
        case InsertPayload(payload, _, _):
            return payload
        case Move(_, _, _, message):
            return message.n
        case SetSessionState(_, n, _, _, _):
            return n
    return 0


@dataclass(slots=True)
class Group:
    writes: list[Write] = field(default_factory=list)
    callbacks: list[Done] = field(default_factory=list)
    is_committed: bool = False


@dataclass(slots=True)
class Wear:
    """Behaviour of this disk: seconds until a commit, and from there until it is heard of; the share that fails."""

    commit_s: float
    answer_s: float
    failing: float


class DiskStore(Units):
    """One process's view of the disk; see the contract in `pairbus.broker.store`."""

    def __init__(
        self, platter: Platter, loop: ProcessLoop, dice: Random, wear: Wear, committed: Callable[[], None]
    ) -> None:
        """`committed()` is told after each commit, before the broker hears of it."""
        self.hindrance: Hindrance | None = None
        self.commit_times = None
        self._platter = platter
        self._loop = loop
        self._dice = dice
        self._wear = wear
        self._committed = committed
        self._last_n = platter.last_n
        self._group = Group()
        self._in_flight: Group | None = None
        self._handing_over = False

    # ── writing ──

    def number(self, count: int = 1) -> int:
        first = self._last_n + 1
        self._last_n += count
        return first

    def write(self, op: Write) -> None:
        if self._unit is not None:
            self._unit.writes.append(op)
            return
        self._group.writes.append(op)
        self._schedule()

    def after_commit(self, done: Done) -> None:
        if self._unit is not None:
            self._unit.callbacks.append(done)
            return
        if self._in_flight is not None and not self._group.writes:
            self._in_flight.callbacks.append(done)
            return
        self._group.callbacks.append(done)
        self._schedule()

    def _schedule(self) -> None:
        if self._in_flight is None and not self._handing_over:
            self._handing_over = True
            self._loop.call_soon(self._hand_over_scheduled)

    def _hand_over_scheduled(self) -> None:
        self._handing_over = False
        if self._in_flight is None:
            self._hand_over()

    def _hand_over(self) -> None:
        group, self._group = self._group, Group()
        if not group.writes:
            self._tell(group, None)
            return
        self._in_flight = group
        self._loop.call_later(self._dice.random() * self._wear.commit_s, self._commit, group)

    def _commit(self, group: Group) -> None:
        if self._dice.random() < self._wear.failing:
            error: StoreError | None = StoreError("The disk is full.")
        else:
            error = self._platter.apply(group.writes)
            group.is_committed = True
        self._loop.call_later(self._dice.random() * self._wear.answer_s, self._finished, group, error)
        self._committed()

    def _finished(self, group: Group, error: StoreError | None) -> None:
        self._in_flight = None
        if self._group.writes:
            self._hand_over()
        self._tell(group, error)

    def _tell(self, group: Group, error: StoreError | None) -> None:
        for done in group.callbacks:
            done(error)

    def die(self) -> str:
        """The process is killed: a group that the writer had is committed or not. Tells which."""
        group = self._in_flight
        if group is None:
            return "nothing under way"
        if group.is_committed:
            return "a commit not heard of"
        if self._dice.random() < 0.5:
            return "a group lost"
        self._platter.apply(group.writes)
        return "a group committed at the last moment"

    # ── reading: committed data only ──

    def recover(self) -> RecoveredStore:
        return self._platter.recover()

    def index(self) -> Iterator[IndexRow]:
        return self._platter.index()

    def payloads(self) -> Iterator[PayloadRow]:
        return self._platter.payloads()

    def remembered(self, entity_id: int) -> list[tuple[str, int]]:
        return self._platter.remembered(entity_id)

    def session_states(self) -> Iterator[StateRow]:
        return self._platter.session_states()

    def load_state(self, n: int) -> bytes | None:
        return self._platter.load_state(n)

    def load(self, box: int, numbers: Sequence[int], size_max: int = UNLIMITED, *, with_bodies: bool = True) -> Loaded:
        return self._platter.load(box, numbers, size_max, with_bodies=with_bodies)

    def seq_of(self, box: int, n: int) -> int:
        return self._platter.seq_of(box, n)

    def payloads_of(self, numbers: Sequence[int]) -> list[int]:
        return self._platter.payloads_of(numbers)

    def probe(self, done: Done) -> None:
        self.after_commit(done)

    async def back_up(self, backup: Backup) -> None:
        raise AssertionError("nobody backs a simulated broker up")

    async def close(self) -> None:
        raise AssertionError("a simulated broker is killed, never closed")
