"""Decides what happens to a message when its handler has ended.

| the handler …                                      | another attempt … | the message is                        |
| -------------------------------------------------- | ----------------- | ------------------------------------- |
| returns                                            |                   | completed                             |
| returns unsettled, `auto_complete=False`           |                   | abandoned, which is told              |
| has settled the message by itself                  |                   | left alone                            |
| raises an exception, or `Retry`                    | after a delay     | retried (`WAYS`)                      |
|                                                    | at once           | abandoned                             |
|                                                    | is not allowed    | dead-lettered, with the exception     |
| raises `DeadLetter`                                |                   | dead-lettered, with reason and text   |
| raises `Defer`                                     |                   | deferred                              |
| is not called: the message cannot be read          |                   | dead-lettered as `UnreadableMessage`  |
| is cancelled, because the processor stops          |                   | released: this counts as no delivery  |
| ends in any way after the lock was lost            |                   | left alone: the entity has it already |
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

REASON_MAX, DESCRIPTION_MAX = 128, 1024  # characters; the service takes 4096 of each
UNREADABLE_REASON = "UnreadableMessage"


class Retry(Exception):
    """Raise it in a handler: the message is handled again after `after` seconds; None: after the processor's delay."""

    def __init__(self, after: float | None = None) -> None:
        if after is not None and not 0 <= after < float("inf"):
            raise ValueError(f"after is {after!r}; it must be a number of seconds, at least 0")
        super().__init__("the handler asked for another attempt" + ("" if after is None else f" after {after:g} s"))
        self.after = after


class DeadLetter(Exception):
    """Raise it in a handler: the message is dead-lettered, with this reason and description."""

    def __init__(self, reason: str, description: str = "") -> None:
        super().__init__(f"{reason}: {description}" if description else reason)
        self.reason = reason
        self.description = description


class Defer(Exception):
    """Raise it in a handler: the message is deferred, and is received only by its sequence number from then on."""


class HandlerEnd(Enum):
    """The ways in which a handler can end."""

    RETURNED = "returned"
    LEFT = "returned without settling"
    SETTLED = "settled the message"
    FAILED = "raised an exception"
    RETRY = "raised Retry"
    DEAD_LETTER = "raised DeadLetter"
    DEFER = "raised Defer"
    UNREADABLE = "was not called: the message cannot be read"
    STOPPED = "was cancelled: the processor stops"
    LOCK_LOST = "lost the lock"


class NextAttempt(Enum):
    """When another attempt may begin."""

    DELAYED = "after a delay"
    AT_ONCE = "at once"
    NEVER = "not allowed"


class Act(Enum):
    """The ways to go on with a message."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"
    DEFER = "defer"
    RELEASE = "release"
    NOTHING = "nothing"


ACTS: Mapping[tuple[HandlerEnd, NextAttempt], Act] = MappingProxyType(
    {(end, NextAttempt.DELAYED): Act.RETRY for end in (HandlerEnd.FAILED, HandlerEnd.RETRY)}
    | {(end, NextAttempt.AT_ONCE): Act.ABANDON for end in (HandlerEnd.FAILED, HandlerEnd.RETRY)}
    | {(end, NextAttempt.NEVER): Act.DEAD_LETTER for end in (HandlerEnd.FAILED, HandlerEnd.RETRY)}
    | {
        (end, following): act
        for end, act in {
            HandlerEnd.RETURNED: Act.COMPLETE,
            HandlerEnd.LEFT: Act.ABANDON,
            HandlerEnd.SETTLED: Act.NOTHING,
            HandlerEnd.DEAD_LETTER: Act.DEAD_LETTER,
            HandlerEnd.DEFER: Act.DEFER,
            HandlerEnd.UNREADABLE: Act.DEAD_LETTER,
            HandlerEnd.STOPPED: Act.RELEASE,
            HandlerEnd.LOCK_LOST: Act.NOTHING,
        }.items()
        for following in NextAttempt
    }
)


class FeedKind(Enum):
    """Kinds of places from which a processor takes messages."""

    QUEUE = "queue"
    SUBSCRIPTION = "subscription"
    SESSION = "session"


class RetryWay(Enum):
    """The ways to make another attempt after a delay."""

    COPY = "copy"
    "A copy is scheduled, then the message is completed. Meanwhile nothing is locked."
    HOLD = "hold"
    "The message stays locked in this process, and its lock is renewed."


WAYS: Mapping[FeedKind, RetryWay] = MappingProxyType(
    {
        FeedKind.QUEUE: RetryWay.COPY,
        FeedKind.SUBSCRIPTION: RetryWay.HOLD,  # a copy would go to all subscriptions of the topic
        FeedKind.SESSION: RetryWay.HOLD,  # later messages of the session would overtake a copy
    }
)


class Ending(NamedTuple):
    """The end of one handler."""

    end: HandlerEnd
    error: BaseException | None = None
    "The exception that the handler raised."


class Decision(NamedTuple):
    """The next step for a message."""

    act: Act
    delay_s: float = 0.0
    "With RETRY: time until the next attempt."
    reason: str = ""
    "With DEAD_LETTER: reason and description."
    description: str = ""


def ending_of(error: BaseException) -> Ending:
    """Return the ending of a handler that raised an exception."""
    if isinstance(error, Retry):
        return Ending(HandlerEnd.RETRY, error)
    if isinstance(error, DeadLetter):
        return Ending(HandlerEnd.DEAD_LETTER, error)
    if isinstance(error, Defer):
        return Ending(HandlerEnd.DEFER, error)
    return Ending(HandlerEnd.FAILED, error)


def decide(ending: Ending, *, attempt: int, max_attempts: int | None, delay_s: float | None) -> Decision:
    """Decide about a message after its attempt number `attempt`, counted from 1.

    `delay_s`: delay of the processor before the next attempt; None: it does not delay. `max_attempts`: None leaves the
    number of attempts to the entity.
    """
    end, error = ending
    if isinstance(error, Retry) and error.after is not None:
        delay_s = error.after
    following = NextAttempt.AT_ONCE if delay_s is None else NextAttempt.DELAYED
    if max_attempts is not None and attempt >= max_attempts:
        following = NextAttempt.NEVER
    act = ACTS[end, following]
    if act is Act.RETRY:
        return Decision(act, delay_s or 0.0)
    if act is Act.DEAD_LETTER:
        return Decision(act, 0.0, *_reason_of(ending, attempt))
    return Decision(act)


def _reason_of(ending: Ending, attempt: int) -> tuple[str, str]:
    end, error = ending
    if isinstance(error, DeadLetter):
        return error.reason[:REASON_MAX], error.description[:DESCRIPTION_MAX]
    text = str(error) or type(error).__name__
    if end is HandlerEnd.UNREADABLE:
        return UNREADABLE_REASON, text[:DESCRIPTION_MAX]
    return type(error).__name__[:REASON_MAX], f"attempt {attempt}: {text}"[:DESCRIPTION_MAX]
