"""What the nemesis does at the moment, and what it has seen pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pairbus.amqp.performatives import Attach
from pairbus.testing.conversation import UP, Direction, Unit, is_node, path_of

How = Literal["reset", "stall", "detach"]


@dataclass(slots=True)
class _Drop:
    path: str | None
    "None: every entity."
    left: int | None
    "Answers still to be dropped; None: all."
    to_settlement: bool


@dataclass(slots=True)
class Faults:
    """The switches. Paths are those of entities in lower case; a path of None means every entity, but no `$` node."""

    is_black_hole: bool = False
    is_stalled: bool = False
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    "What each connection passes in each direction; 0: as much as comes."
    held: set[str | None] = field(default_factory=set)
    cut: dict[str, How] = field(default_factory=dict)
    drops: list[_Drop] = field(default_factory=list)

    def holds(self, path: str) -> bool:
        return path in self.held or (None in self.held and not is_node(path))

    def cuts(self, path: str) -> How | None:
        return self.cut.get(path)

    def drop_answers(self, path: str | None, count: int | None, *, to_settlement: bool) -> None:
        self.drops.append(_Drop(None if path is None else path_of(path), count, to_settlement))

    def drops_answer(self, path: str, *, to_settlement: bool) -> bool:
        """Whether this answer is lost; one of those that were asked for is used up by it."""
        for drop in self.drops:
            meant = drop.path == path or (drop.path is None and not is_node(path))
            if meant and drop.to_settlement is to_settlement and drop.left != 0:
                if drop.left is not None:
                    drop.left -= 1
                return True
        return False

    def clear(self) -> None:
        self.is_black_hole = self.is_stalled = False
        self.latency_s = self.bytes_per_s = 0.0
        self.held.clear()
        self.cut.clear()
        self.drops.clear()


@dataclass(slots=True)
class PathCounts:
    """What passed on links of one path; `$cbs` and `orders/$management` are paths of their own."""

    attaches: int = 0
    "By clients."
    transfers: int = 0
    "Messages, or batches, from clients that reached the broker, pings included."
    transfers_held: int = 0
    "Those of them that were stalled on the way, also those that never arrived."
    pings: int = 0
    deliveries: int = 0
    "Messages that the broker sent to clients."
    answers: int = 0
    "Deliveries whose outcome reached the client: of its sends, and of its settlements."
    answers_dropped: int = 0
    bytes: int = 0
    "Of the frames of these links, both ways."


class Counts:
    """What passed, of all connections together. TLS is counted in bytes alone."""

    def __init__(self) -> None:
        self.connections = 0
        "Accepted, also those that met a black hole."
        self.bytes_up = 0
        self.bytes_down = 0
        self._paths: dict[str, PathCounts] = {}

    def of(self, path: str) -> PathCounts:
        return self._paths.setdefault(path_of(path), PathCounts())

    def passed(self, direction: Direction, unit: Unit) -> None:
        if direction is UP:
            self.bytes_up += len(unit.raw)
        else:
            self.bytes_down += len(unit.raw)
        if unit.link is None:
            return
        counts = self.of(unit.link.path)
        counts.bytes += len(unit.raw)
        if isinstance(unit.what, Attach) and direction is UP:
            counts.attaches += 1
        if unit.delivery_id is not None:
            if direction is UP:
                counts.transfers += 1
                counts.pings += unit.is_ping
            else:
                counts.deliveries += 1
