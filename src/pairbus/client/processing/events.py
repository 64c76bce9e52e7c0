"""Events of a processor, which `on_error` gets. `str(event)` is the log line."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pairbus.pairing.events import Event, ReceivingInterrupted, ReceivingResumed

__all__ = [
    "HandlerFailed",
    "HookFailed",
    "LockLost",
    "NotSettled",
    "ProcessorEvent",
    "ReceivingInterrupted",
    "ReceivingResumed",
    "level_of",
]


@dataclass(frozen=True, slots=True)
class HandlerFailed(Event):
    """A handler raised an exception, or returned without settling its message."""

    path: str
    message_id: str
    attempt: int
    "Number of this attempt, from 1 on."
    error: BaseException | None
    "The exception; None when the handler only did not settle the message."
    then: str
    "The next step for the message, in words."
    session_id: str | None = None

    def __str__(self) -> str:
        why = "did not settle it" if self.error is None else f"raised {type(self.error).__name__}: {self.error}"
        return f"{self.path}: the handler of {self.message_id} {why} (attempt {self.attempt}): {self.then}"


@dataclass(frozen=True, slots=True)
class LockLost(Event):
    """The lock of a message was lost while its handler was at work: the message comes again."""

    path: str
    message_id: str
    reason: str
    session_id: str | None = None

    def __str__(self) -> str:
        return f"{self.path}: the lock of {self.message_id} was lost: {self.reason}"


@dataclass(frozen=True, slots=True)
class NotSettled(Event):
    """A message could not be settled after its handler had ended: it comes again when its lock ends."""

    path: str
    message_id: str
    operation: str
    error: BaseException
    outcome_unknown: bool = False
    "True: the service may have settled the message."

    def __str__(self) -> str:
        unknown = ", which may have happened" if self.outcome_unknown else ""
        return f"{self.path}: {self.message_id}: {self.operation} failed{unknown}: {self.error}"


@dataclass(frozen=True, slots=True)
class HookFailed(Event):
    """A hook that opens or closes a session raised an exception."""

    path: str
    session_id: str
    hook: str
    error: BaseException

    def __str__(self) -> str:
        return f"{self.path}: {self.hook} of session {self.session_id} raised {type(self.error).__name__}: {self.error}"


ProcessorEvent = HandlerFailed | LockLost | NotSettled | HookFailed | ReceivingInterrupted | ReceivingResumed


def level_of(event: Event) -> int:
    """Return the level of the log line, for a processor without `on_error`."""
    return logging.ERROR if isinstance(event, HandlerFailed | HookFailed) and event.error else logging.WARNING
