"""The event loop of a command, and the signals that end a command which runs until it is stopped.

The network is imported when the loop runs: that takes longer than the rest of a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from pairbus.cli.standard import STOPPING, ignore_signals

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run as `pairbus.transport.loops.run` does."""
    from pairbus.transport import loops

    return loops.run(work)


def stop_event() -> asyncio.Event:
    """Return an event that Ctrl-C and SIGTERM set from now on, instead of ending the process."""
    stopped = asyncio.Event()
    for number in STOPPING:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


def end_signals() -> None:
    """Ignore Ctrl-C and SIGTERM from here on, instead of what the event loop did: the exit code is decided."""
    for number in STOPPING:
        asyncio.get_running_loop().remove_signal_handler(number)
    ignore_signals()
