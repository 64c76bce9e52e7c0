"""The events of a paired client: noted during a decision, told afterwards, in order.

Code that decides calls `publish`, and `deliver` when the decision is complete, so that a listener may call the client.
Telling an event means: log it, count it, write it into the ledger, hand it to the listeners.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from pairbus.ledger import Ledger
from pairbus.pairing import events as kinds
from pairbus.pairing.events import Event
from pairbus.telemetry.counters import Counters

logger = logging.getLogger("pairbus")

WARNINGS = (
    kinds.BacklogQueueBack,
    kinds.BacklogQueueFailed,
    kinds.DeadLettered,
    kinds.DestinationSkipped,
    kinds.FailedOver,
    kinds.Faulted,
    kinds.MaybeDuplicated,
    kinds.NotCompleted,
    kinds.PairingCleared,
    kinds.PingRefused,
    kinds.PrimaryReachable,
    kinds.PrimaryUnreachable,
    kinds.ReceivingInterrupted,
    kinds.ReceivingResumed,
    kinds.Recovered,
    kinds.SecondaryLost,
    kinds.Spooled,
    kinds.SpoolRefused,
    kinds.Stayed,
    kinds.Suspected,
    kinds.Unpaired,
)
"""Events that an operator should look at: trouble, and also its end. A log at the default level would otherwise end
with FAILED_OVER for ever."""
DETAILS = (kinds.Diverted, kinds.Moved, kinds.PingSent, kinds.SpoolForwarded)
"Events that come in thousands, and change no clock."

Listener = Callable[[Event], None]


class EventOutbox:
    """The outbox of one paired client."""

    def __init__(self, counters: Counters, ledger: Ledger | None, listener: Listener | None) -> None:
        self._counters = counters
        self._ledger = ledger
        self.outbox: deque[Event] = deque()
        "Events that were published and not told yet."
        self.listener = listener
        "The application's `on_event`."
        self.listeners: list[Listener] = []
        "Listeners of the engine, called in its event loop."
        self.tell_followers: Callable[[dict[str, str]], None] | None = None
        "Function that tells the followers of the control socket all events but details; None without a socket."
        self.wake: Callable[[], None] = lambda: None
        "Function that tells the background tasks that clocks may have changed."
        self._is_unpaired = False
        "True: `Unpaired` was told, and pairing, which ends it, has not completed yet."

    @property
    def is_heard(self) -> bool:
        """True when details have a reader besides the counters: a listener, the ledger or the log."""
        has_listener = self.listener is not None or bool(self.listeners) or self._ledger is not None
        return has_listener or logger.isEnabledFor(logging.DEBUG)

    def publish(self, event: Event) -> None:
        """Note an event; `deliver` tells it."""
        object.__setattr__(event, "at_s", time.time())  # a copy of the frozen event costs ten times as much
        self.outbox.append(event)

    def tell(self, event: Event) -> None:
        """Publish and deliver."""
        self.publish(event)
        self.deliver()

    def deliver(self) -> None:
        """Tell the events that were published."""
        while self.outbox:
            event = self.outbox.popleft()
            is_detail, level = isinstance(event, DETAILS), self._level(event)
            if not is_detail or logger.isEnabledFor(level):
                logger.log(level, "%s", event)
            self._counters.note(event)
            if self._ledger is not None:
                self._ledger.record(event)
            for listener in list(self.listeners):
                listener(event)
            if not is_detail:
                if self.tell_followers is not None:
                    self.tell_followers({"event": type(event).__name__, "text": str(event)})
                self.wake()
            if self.listener is not None:  # last, because it may cause further events, which are told at once
                call_listener(self.listener, event)

    def _level(self, event: Event) -> int:
        """Return the level of the log line; the end of some trouble is as loud as its begin."""
        if isinstance(event, kinds.Unpaired | kinds.Paired):
            was_unpaired, self._is_unpaired = self._is_unpaired, isinstance(event, kinds.Unpaired)
            return logging.WARNING if was_unpaired or self._is_unpaired else logging.INFO
        if isinstance(event, kinds.SpoolForwarded) and not event.waiting:
            return logging.WARNING
        if isinstance(event, DETAILS):
            return logging.DEBUG
        return logging.WARNING if isinstance(event, WARNINGS) else logging.INFO

    def forget(self) -> None:
        """Drop events that are not told yet: in a forked child they are the parent's."""
        self.outbox.clear()


def call_listener(listener: Listener, event: Event) -> None:
    """Call the application's listener. Its error is logged: a send must not fail because of it."""
    try:
        listener(event)
    except Exception:
        logger.exception("on_event failed for %s", event)
