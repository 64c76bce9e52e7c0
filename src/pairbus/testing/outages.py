"""The faults of a namespace, switched from any thread, and outages that last as long as a block of a test.

with namespace.outage("refuse"):
    …  # connections are refused
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any

from pairbus.broker.outages import NamespaceFaults
from pairbus.errors import FaultNotFound
from pairbus.testing.threads import Run


class ThreadFaults:
    """The switches of a namespace, for any thread. See docs/outages.md for kinds and fields."""

    def __init__(self, faults: NamespaceFaults, run: Run) -> None:
        self._faults = faults
        self._run = run

    def __repr__(self) -> str:
        return repr(self._faults)

    def add(self, kind: str, **fields: Any) -> int:
        """Switch a fault on, and return its number; it has begun when the call returns.

        Fields: entity, direction, for_s, probability, count, and the numbers of its kind. InvalidFault names a field
        that is wrong, and the accepted values.
        """
        return self._run(self._add(kind, fields))

    async def _add(self, kind: str, fields: dict[str, Any]) -> int:
        return self._faults.add(kind, **fields)

    def clear(self, number: int | None = None) -> int:
        """Switch one fault off, or all of them, and return how many. FaultNotFound when none has this number."""
        return self._run(self._clear(number))

    async def _clear(self, number: int | None) -> int:
        return self._faults.clear(number)

    async def _list(self) -> list[dict[str, Any]]:
        return self._faults.list()

    # Last in the class, because `list` hides the builtin from later annotations.

    def list(self) -> list[dict[str, Any]]:
        """List the faults that are on: the fields of `add`, and `id`, `left_s` and `left`."""
        return self._run(self._list())


class Outage:
    """A fault that begins when this object is made, and ends with its `with` block or with `end`."""

    def __init__(self, faults: ThreadFaults, kind: str, fields: dict[str, Any]) -> None:
        self._faults = faults
        self._kind = kind
        self.number = faults.add(kind, **fields)
        "Number of the fault in the list of faults."

    def __repr__(self) -> str:
        return f"<Outage {self.number} {self._kind}>"

    def end(self) -> None:
        """Switch the fault off. Does nothing when it has ended by itself, by its count, or by a reset."""
        with suppress(FaultNotFound):
            self._faults.clear(self.number)

    def __enter__(self) -> Outage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
