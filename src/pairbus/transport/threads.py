"""Blocking calls off the event loop, in daemon threads: one that hangs never holds up the end of the process.

The default executor of asyncio is not used, because the interpreter waits for its threads before it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(name: str, function: Callable[..., T], *args: Any) -> T:
    """Return what `function(*args)` returns, or raise what it raises. A caller that gives up leaves it running."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    call = partial(contextvars.copy_context().run, function, *args)
    threading.Thread(target=_run, args=(call, answer), name=name, daemon=True).start()
    return await answer


def _run(call: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
    result, problem = None, None
    try:
        result = call()
    except BaseException as error:
        problem = error  # raised where it is awaited
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
        answer.get_loop().call_soon_threadsafe(_deliver, answer, result, problem)


def _deliver(answer: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
    if answer.done():
        return
    if problem is None:
        answer.set_result(result)
    elif isinstance(problem, StopIteration):  # a future cannot hold one
        answer.set_exception(RuntimeError(f"the call raised {problem!r}"))
    else:
        answer.set_exception(problem)
