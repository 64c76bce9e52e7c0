"""Units: writes of several steps that a store commits together, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pairbus.errors import StoreError

if TYPE_CHECKING:
    from pairbus.broker.store import Done, Write


class JointWrites:
    """Writes and callbacks of a unit that is being put together."""

    __slots__ = ("callbacks", "writes")

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.callbacks: list[Done] = []

    def tell(self, error: StoreError | None) -> None:
        """Call every callback, in their order, also when one of them raises."""
        with ExitStack() as rest:
            for done in reversed(self.callbacks):
                rest.callback(done, error)


class Units:
    """Part of a store that puts units together: `write` and `after_commit` of the store ask `_unit` first."""

    _unit: JointWrites | None = None
    "Unit that takes the writes and callbacks; None: each step is a unit of its own."

    def write(self, op: Write) -> None:
        raise NotImplementedError

    def after_commit(self, done: Done) -> None:
        raise NotImplementedError

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Make one unit of all writes up to the end of the context (see `Store.unit`)."""
        assert self._unit is None, "a unit within another"
        unit = self._unit = JointWrites()
        try:
            yield
        except BaseException as error:
            self._unit = None
            unit.tell(StoreError(f"Nothing was written: {error}"))
            raise
        self._unit = None
        for op in unit.writes:
            self.write(op)
        self.after_commit(unit.tell)
