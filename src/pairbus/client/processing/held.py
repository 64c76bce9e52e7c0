"""One message that a processor holds, and one end of a handler on its way back to the engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pairbus.amqp.errors import ProtocolError
from pairbus.client.processing.decide.copies import Facts, facts_of, sequence_of
from pairbus.client.processing.decide.endings import Ending, HandlerEnd
from pairbus.client.receiving.incoming import Incoming

if TYPE_CHECKING:
    from pairbus.client.processing.feed import Feed

T = TypeVar("T")


class HeldMessage:
    """One message from its arrival until it is settled. The engine changes it; handlers may read it at any time."""

    __slots__ = (
        *("_facts", "began_at", "held_attempts", "incoming", "is_handled", "is_lost", "is_settled", "is_stopped"),
        *("feed", "lock_ends_s", "payload", "sequence", "size", "successor", "task"),
    )

    def __init__(self, feed: Feed, incoming: Incoming) -> None:
        self.feed = feed
        self.incoming = incoming
        self.payload = incoming.payload
        self.size = len(self.payload)
        self.sequence = sequence_of(self.payload)
        self._facts: Facts | None = None
        self.held_attempts = 0
        "Attempts since the message arrived, while it was held."
        self.lock_ends_s: float | None = None
        "New end of the lock in seconds since 1970; None: it was never renewed."
        self.began_at: float | None = None
        "Time at which the handler began, by the loop's clock; None while it does not run."
        self.is_handled = False
        "True while a handler runs, or its end is on its way."
        self.is_lost = False
        "True: the lock is lost, so another receiver may have the message."
        self.is_settled = False
        "True: the handler has settled the message, or is about to."
        self.is_stopped = False
        "True: the handler was asked to end, because the processor stops."
        self.task: asyncio.Task[Ending] | None = None
        "Task of the handler, in the application's loop."
        self.successor: HeldMessage | None = None
        "The same message, delivered again: it is handled when this handler has ended."

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "handled" if self.is_handled else "waiting"
        return f"<HeldMessage {self.feed.path} {self.sequence} {state}>"

    @property
    def facts(self) -> Facts:
        if self._facts is None:
            try:
                self._facts = facts_of(self.payload)
            except (ProtocolError, IndexError):
                self._facts = Facts()  # `HandlerEnd.UNREADABLE` decides about such a message
        return self._facts

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1 on."""
        return self.facts.attempt + self.held_attempts

    @property
    def name(self) -> str:
        """Name of the message for events."""
        message_id = self.facts.message_id
        return f"message {self.sequence}" if message_id is None else str(message_id)

    def returned(self, *, auto_complete: bool) -> Ending:
        """Return the ending of a handler that has returned."""
        if self.is_settled:
            return Ending(HandlerEnd.SETTLED)
        return Ending(HandlerEnd.RETURNED if auto_complete else HandlerEnd.LEFT)

    def raised(self, error: BaseException) -> Ending | None:
        """Return the ending of a handler that raised an exception after it had settled the message by itself."""
        return Ending(HandlerEnd.SETTLED, error) if self.is_settled else None


class EndReport:
    """The end of one handler."""

    __slots__ = ("duration_s", "ending", "work")

    def __init__(self, work: HeldMessage, ending: Ending, duration_s: float) -> None:
        self.work = work
        self.ending = ending
        self.duration_s = duration_s


class Inbox(Generic[T]):
    """Items on their way from other threads into an event loop, which is woken once for all that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[list[T]], Any]) -> None:
        self._loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._is_woken = False

    def put(self, item: T) -> None:
        """Give an item from any thread. RuntimeError when the loop was closed."""
        self._items.append(item)
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._taken)

    def _taken(self) -> None:
        self._is_woken = False  # first: an item that is put later wakes the loop again
        items = []
        while self._items:
            items.append(self._items.popleft())
        if items:
            self._take(items)
