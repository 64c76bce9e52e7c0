"""The event loop for programs that move many messages: uvloop's where it is installed, Python's otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        from pairbus.transport.uv_loop import Loop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = Loop()
    return loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)
