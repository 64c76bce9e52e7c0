"""Six ways to be wrong, each a small change of the genuine code inside the process that the world starts."""

from __future__ import annotations

from collections.abc import Callable

BROKEN: dict[str, Callable[[], None]] = {}


def plant(name: str) -> None:
    """Break this process; an empty name leaves it as it is."""
    if name:
        BROKEN[name]()
