"""Options of a processor, checked when it is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from pairbus.client.processing.decide.backoff import MAX_ATTEMPTS, Backoff
from pairbus.client.receiving.options import ReceiverOptions, of_queue, of_subscription
from pairbus.errors import did_you_mean

CONCURRENCY_MAX = 10_000
DEFAULT: Literal["default"] = "default"
_RETRY = Backoff()
_COUNTS = ("max_concurrent_calls", "max_concurrent_sessions", "max_concurrent_calls_per_session")


@dataclass(frozen=True, slots=True)
class ProcessorOptions:
    """Options of one processor, as `get_queue_processor` takes them."""

    max_concurrent_calls: int = 1
    "Handlers at once, on an entity without sessions."
    max_concurrent_sessions: int = 8
    "Sessions that are held at once, on an entity with sessions."
    max_concurrent_calls_per_session: int = 1
    "Handlers at once for one session; order is kept with 1."
    session_idle_timeout: float = 60.0
    "Seconds after which a session without messages is given up for the next one."
    session_ids: Sequence[str] | None = None
    "The sessions to hold; None: all that have messages."
    on_session_open: Callable[[Any], Any] | None = None
    "Called with the session before its first message."
    on_session_close: Callable[[Any], Any] | None = None
    "Called with the session before it is given up, also when its lock was lost."
    max_auto_lock_renewal_duration: float | None = 300.0
    "Seconds for which the lock of a message is renewed while its handler runs; 0 or None: not at all."
    auto_complete: bool = True
    "True: a message is completed when its handler returns; False: the handler settles it."
    retry: Backoff | None = _RETRY
    "Delays between attempts; None: a message is abandoned, and comes again at once."
    max_attempts: int | Literal["default"] | None = DEFAULT
    "Attempts before a message is dead-lettered; None: as the entity decides."
    on_error: Callable[[Any], Any] | None = None
    "Called with every event of `pairbus.client.processing.events`; without it they are logged."

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= CONCURRENCY_MAX:
                raise ValueError(f"{name} is {value!r}; it must be an integer from 1 to {CONCURRENCY_MAX}")
        _check_seconds("session_idle_timeout", self.session_idle_timeout, least=0.1)
        if self.max_auto_lock_renewal_duration is not None:
            _check_seconds("max_auto_lock_renewal_duration", self.max_auto_lock_renewal_duration, least=0.0)
        if not isinstance(self.auto_complete, bool):
            raise ValueError(f"auto_complete is {self.auto_complete!r}; it must be True or False")
        if self.retry is not None and not isinstance(self.retry, Backoff):
            raise ValueError(f"retry is {self.retry!r}; it must be a Backoff or None")
        most = self.max_attempts
        if most not in (None, DEFAULT) and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise ValueError(f"max_attempts is {most!r}; it must be an integer of at least 1, or None")
        ids = self.session_ids
        if ids is not None and (isinstance(ids, str) or not ids or not all(isinstance(one, str) for one in ids)):
            raise ValueError(f"session_ids is {ids!r}; it must be a list of at least one session id, or None")
        for name in ("on_session_open", "on_session_close", "on_error"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{name} is {getattr(self, name)!r}; it must be a function")

    @property
    def attempts_max(self) -> int | None:
        """Attempts before a message is dead-lettered; None leaves it to the entity."""
        if isinstance(self.max_attempts, str):
            return None if self.retry is None else MAX_ATTEMPTS
        return self.max_attempts

    @property
    def renewal_s(self) -> float:
        return self.max_auto_lock_renewal_duration or 0.0

    @property
    def wants_sessions(self) -> bool:
        """True when only an entity with sessions can be meant."""
        return self.session_ids is not None or self.on_session_open is not None or self.on_session_close is not None


_NAMES = [each.name for each in fields(ProcessorOptions)]


def options_of(keywords: dict[str, Any]) -> ProcessorOptions:
    """Return the options. TypeError for a name that is none, with the one that may be meant."""
    for name in keywords:
        if name not in _NAMES:
            hint = did_you_mean(name, _NAMES) or ";"
            raise TypeError(f"got an unexpected keyword argument {name!r}{hint} a processor takes {_NAMES}")
    return ProcessorOptions(**keywords)


def queue_options(queue_name: str, *, only_entity: str | None) -> ReceiverOptions:
    return of_queue(queue_name, only_entity=only_entity)


def subscription_options(topic_name: str, subscription_name: str, *, only_entity: str | None) -> ReceiverOptions:
    return of_subscription(topic_name, subscription_name, only_entity=only_entity)


def check_handler(handler: Any, *, aio: bool) -> None:
    """TypeError for a handler of the other flavour."""
    if not callable(handler):
        raise TypeError(f"handler is {handler!r}; it must be a function of one message")
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
    if is_async and not aio:
        raise TypeError("handler is a coroutine function: it needs a client of pairbus.aio")
    if aio and not is_async and inspect.isfunction(handler):
        raise TypeError(
            "handler is not a coroutine function: it needs a client of pairbus, whose handlers have threads"
        )


def _check_seconds(name: str, value: Any, *, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
        raise ValueError(f"{name} is {value!r}; it must be a number of seconds, at least {least:g}")
