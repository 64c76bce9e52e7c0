"""Blocking calls off the event loop, in daemon threads: one that hangs never holds up the end of the process.

The default executor of asyncio is not used, because the interpreter waits for its threads before it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(name: str, function: Callable[..., T], *args: Any) -> T:
    """Return what `function(*args)` returns, or raise what it raises. A caller that gives up leaves it running."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        result, problem = None, None
        try:
            result = context.run(function, *args)
        except BaseException as error:
            problem = error  # raised where it is awaited
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            loop.call_soon_threadsafe(_deliver, answer, result, problem)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await answer


def _deliver(answer: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
    if answer.done():
        return
    if problem is None:
        answer.set_result(result)
    elif isinstance(problem, StopIteration):  # a future cannot hold one
        answer.set_exception(RuntimeError(f"the call raised {problem!r}"))
    else:
        answer.set_exception(problem)
