"""Frames that wait for the end of a fault, in the order in which they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pairbus.amqp.performatives import Attach, Disposition
from pairbus.proxy.conversation import DOWN, UP, Direction, FollowedLink, Unit

HELD_BYTES_MAX = 16 << 20  # in each direction of a connection; beyond it the proxy stops reading from that peer


class _Held(NamedTuple):
    direction: Direction
    link: FollowedLink
    unit: Unit
    key: object
    "Key that releases the frame; None: it waits behind another frame of its link."


class HeldUnits:
    """The frames of one connection that wait."""

    def __init__(self) -> None:
        self._units: list[_Held] = []
        self._bytes = {UP: 0, DOWN: 0}

    def is_full(self, direction: Direction) -> bool:
        return self._bytes[direction] > HELD_BYTES_MAX

    def add(self, direction: Direction, link: FollowedLink, unit: Unit, key: object) -> None:
        """Keep a frame until its key is released; None: until the frames before it on its link are."""
        self._units.append(_Held(direction, link, unit, key))
        self._bytes[direction] += len(unit.raw)

    def must_wait(self, direction: Direction, link: FollowedLink, unit: Unit) -> bool:
        """Tell whether a frame would overtake another of its kind: messages keep their order, settlements theirs."""
        sort = _sort(unit)
        return any(
            one.link is link
            and one.direction is direction
            and (isinstance(one.unit.performative, Attach) or (sort is not None and _sort(one.unit) == sort))
            for one in self._units
        )

    def drop(self, of_link: Callable[[FollowedLink], bool]) -> None:
        """Drop the frames of links that are gone."""
        self._units = [one for one in self._units if not of_link(one.link)]
        self._count()

    def take(self, is_released: Callable[[object], bool]) -> list[tuple[Direction, FollowedLink, Unit]]:
        """Take the frames that need not wait any longer."""
        released: list[tuple[Direction, FollowedLink, Unit]] = []
        units, self._units = self._units, []
        for one in units:
            free = not self.must_wait(one.direction, one.link, one.unit) if one.key is None else is_released(one.key)
            if free:
                released.append((one.direction, one.link, one.unit))
            else:
                self._units.append(one)
        self._count()
        return released

    def _count(self) -> None:
        for direction in self._bytes:
            self._bytes[direction] = sum(len(one.unit.raw) for one in self._units if one.direction is direction)


def _sort(unit: Unit) -> str | None:
    """Return the kind of frames among which a frame keeps its place."""
    return "message" if unit.is_transfer else "settlement" if isinstance(unit.performative, Disposition) else None
