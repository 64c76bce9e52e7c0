"""Makes blocking calls in daemon threads: one that hangs delays neither the event loop nor the end of the process.

The default executor of asyncio is not used, because the interpreter waits for its threads before it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(name: str, function: Callable[..., T], *args: Any) -> T:
    """Return the result of `function(*args)`, or raise its error. It keeps running when the caller gives up."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    call = partial(contextvars.copy_context().run, function, *args)
    threading.Thread(target=_run, args=(call, answer), name=name, daemon=True).start()
    return await answer


def outcome_of(call: Future[T]) -> asyncio.Future[T]:
    """Return the outcome of a call that an executor makes. If its caller leaves, asyncio does not log its error."""
    outcome = asyncio.wrap_future(call)
    outcome.add_done_callback(lambda outcome: outcome.cancelled() or outcome.exception())
    return outcome


def _run(call: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
    result, problem = None, None
    try:
        result = call()
    except BaseException as error:
        problem = error  # raised where it is awaited
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: no caller waits
        answer.get_loop().call_soon_threadsafe(_deliver, answer, result, problem)


def _deliver(answer: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
    if answer.done():
        return
    if problem is None:
        answer.set_result(result)
    elif isinstance(problem, StopIteration):  # a future cannot hold this exception
        answer.set_exception(RuntimeError(f"the call raised {problem!r}"))
    else:
        answer.set_exception(problem)
