"""Run of a `pairbus message` command: signals, progress on a terminal, and the last line.

Ctrl-C or SIGTERM cancels the verb, which finishes its batch and leaves no message locked. A second Ctrl-C ends the
process at once, which loses no message either: locks expire.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeVar

import typer

from pairbus.cli.admin.connection import broker_hint
from pairbus.cli.loop import end_signals, run
from pairbus.cli.pipeline.backlogs import carrier_of
from pairbus.cli.standard import STOPPING, ProgressLine, one_line, say
from pairbus.explorer import Progress, Unreachable
from pairbus.transport import Carrier

if TYPE_CHECKING:
    from pairbus.client.sides import Side

INTERRUPTED = 130
LINE_S = 0.2
T = TypeVar("T")


class Telling:
    """The progress line of one run, and its end."""

    def __init__(self, doing: str, done: str, uncompleted: str = "in both places") -> None:
        """Take the words for the verb, and for messages that could not be completed at its end."""
        self._doing = doing
        self._done = done
        self._uncompleted = uncompleted
        self._line = ProgressLine()
        self._began = time.monotonic()
        self._shown_at = 0.0
        self.progress = Progress(tell=self._tell)

    def _tell(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._shown_at < LINE_S:
            return
        self._shown_at = now
        total = "" if progress.total is None else f" of {progress.total}"
        passed = f", {progress.passed} passed over" if progress.passed else ""
        rate = progress.done / max(now - self._began, 0.001)
        self._line.show(f"{self._doing} {progress.done}{total}{passed}, {rate:.0f}/s")

    def clear(self) -> None:
        self._line.clear()

    def summary(self) -> str:
        """Return the counts as a sentence."""
        progress = self.progress
        parts = [f"{self._done} {many(progress.done)}"]
        if progress.uncompleted:
            parts.append(f"{progress.uncompleted} of them could not be completed: {self._uncompleted}")
        if progress.left:
            parts.append(f"{progress.left} left")
        return ", ".join(parts)

    def notes(self) -> None:
        for note in self.progress.notes:
            say(one_line(note))


def many(count: int) -> str:
    return f"{count} message" if count == 1 else f"{count} messages"


def carry_out(
    sides: list[Side],
    work: Callable[[list[Carrier]], Awaitable[T]],
    telling: Telling | None = None,
    again: str | Callable[[], str] = "",
) -> T:
    """Run a verb on the carriers of these sides. After an interrupt it prints how far it came, and exits with 130.

    `again`: end of that line, about messages that were not handled and how to go on.
    """
    try:
        return run(_carried(sides, work, telling, again))
    except Unreachable as error:
        raise Unreachable(f"{error}{broker_hint(*(side.endpoint.host for side in sides))}") from None


async def _carried(
    sides: list[Side],
    work: Callable[[list[Carrier]], Awaitable[T]],
    telling: Telling | None,
    again: str | Callable[[], str],
) -> T:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    is_told = False

    def stop(number: signal.Signals) -> None:
        nonlocal is_told
        is_told = True
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)  # the next signal ends the process, whatever it waits for
        task.cancel()

    for number in STOPPING:
        loop.add_signal_handler(number, stop, number)
    try:
        async with AsyncExitStack() as opened:
            carriers = [await opened.enter_async_context(carrier_of(side)) for side in sides]
            result = await work(carriers)
            end_signals()  # the work is done: only the last line is left
            return result
    except asyncio.CancelledError:
        if not is_told:
            raise
    finally:
        if telling is not None:
            telling.clear()
    task.uncancel()
    if telling is not None:
        telling.notes()
    end = again if isinstance(again, str) else again()
    say(f"interrupted{'' if telling is None else f': {telling.summary()}'}{end}")
    raise typer.Exit(INTERRUPTED)
