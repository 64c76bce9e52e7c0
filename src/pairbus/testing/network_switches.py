"""The switches of a nemesis: the faults that it plays at the moment."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from pairbus.amqp.errors import DETACH_FORCED
from pairbus.amqp.performatives import Error
from pairbus.faults import Active, Fault
from pairbus.faults.play.cable import CableFaults
from pairbus.proxy.conversation import FollowedLink, Unit, is_node, path_of
from pairbus.proxy.verdicts import RESET, FrameAct, How

CutHow = Literal["reset", "stall", "detach"]
_HOLD = FrameAct(How.HOLD, "until it heals")
CUTS: dict[CutHow, FrameAct] = {
    "reset": RESET,
    "stall": _HOLD,
    "detach": FrameAct(How.DETACH, error=Error(DETACH_FORCED, "The link was cut between the client and the broker.")),
}


@dataclass(slots=True)
class _Drop:
    path: str | None
    "Path of the entity; None: every entity."
    left: int | None
    "Answers still to be dropped; None: all."
    to_settlement: bool


@dataclass(slots=True)
class NemesisSwitches:
    """The rules of a nemesis. Paths are those of entities in lower case; None means every entity, not `$` nodes."""

    is_black_hole: bool = False
    cables: CableFaults = field(default_factory=partial(CableFaults, random.random))
    "Faults that freeze and slow the cables; the same in both directions."
    held: set[str | None] = field(default_factory=set)
    cut: dict[str, CutHow] = field(default_factory=dict)
    drops: list[_Drop] = field(default_factory=list)

    def slow_line(self, kind: str, **numbers: Any) -> None:
        """Slow the cable by one fault of the kind; without numbers, end that fault."""
        slow = [active for active in self.cables.slow if active.fault.kind.name != kind]
        if any(numbers.values()):
            slow.append(Active(0, Fault.read({"kind": kind, **numbers}), 0.0))
        self.cables.slow_by(slow)

    def drop_answers(self, path: str | None, count: int | None, *, to_settlement: bool) -> None:
        self.drops.append(_Drop(None if path is None else path_of(path), count, to_settlement))

    def clear(self) -> None:
        self.is_black_hole = False
        self.held.clear()
        self.cut.clear()
        self.drops.clear()

    def go_on(self) -> None:
        """Freeze and slow no cable any more."""
        self.cables.slow_by(())
        self.cables.thaw("stall")

    # ── questions of passages ──

    def attach(self, link: FollowedLink) -> FrameAct | None:
        how = self.cut.get(link.path)
        return None if how is None else CUTS[how]

    def message(self, link: FollowedLink, unit: Unit) -> FrameAct | None:
        is_held = link.path in self.held or (None in self.held and not is_node(link.path))
        return _HOLD if is_held else None

    def asks(self, link: FollowedLink) -> FrameAct | None:
        return None

    def delivery(self, link: FollowedLink) -> FrameAct | None:
        return None

    def settlement(self, link: FollowedLink) -> FrameAct | None:
        return None

    def drops_answer(self, link: FollowedLink, *, to_settlement: bool) -> bool:
        """Tell whether this answer is dropped; a dropped answer counts down the number that was asked for."""
        for drop in self.drops:
            meant = drop.path == link.path or (drop.path is None and not is_node(link.path))
            if meant and drop.to_settlement is to_settlement and drop.left != 0:
                if drop.left is not None:
                    drop.left -= 1
                return True
        return False
