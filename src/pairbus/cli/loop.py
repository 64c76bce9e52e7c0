"""The event loop of a command. The network is imported when it runs: that takes longer than the rest of a command."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run as `pairbus.transport.loops.run` does."""
    from pairbus.transport import loops

    return loops.run(work)
