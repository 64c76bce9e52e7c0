"""Events of a paired client: one frozen value for every transition. `str(event)` is the log line.

Times are seconds since 1970 (`at_s`), set when the event is published.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    at_s: float = 0.0
    "Time of the event, in seconds since 1970."


@dataclass(frozen=True, slots=True)
class Paired(Event):
    primary: str
    secondary: str
    backlog_queues: int
    "Number of backlog queues that were found or created."

    def __str__(self) -> str:
        return f"{self.primary} paired with {self.secondary}: {self.backlog_queues} backlog queues"


@dataclass(frozen=True, slots=True)
class Unpaired(Event):
    """The secondary cannot be reached, and the client was told that it may start without it."""

    primary: str
    secondary: str
    reason: str

    def __str__(self) -> str:
        return f"{self.primary} starts without {self.secondary}, and pairs when it can: {self.reason}"


@dataclass(frozen=True, slots=True)
class SecondaryLost(Event):
    """The secondary was closed or faulted, and no syphon runs here: the primary stays usable."""

    primary: str
    secondary: str
    reason: str

    def __str__(self) -> str:
        return f"{self.primary} goes on without {self.secondary}: nothing can be diverted: {self.reason}"


@dataclass(frozen=True, slots=True)
class PairingCleared(Event):
    primary: str

    def __str__(self) -> str:
        return f"{self.primary}: pairing cleared; sends go to the primary only"


@dataclass(frozen=True, slots=True)
class Suspected(Event):
    """HEALTHY → SUSPECT: the failover clock runs."""

    path: str
    "Entity whose send failed."
    reason: str
    fails_over_in_s: float | None
    "None: never, because the client has no secondary."

    def __str__(self) -> str:
        after = "" if self.fails_over_in_s is None else f"; fails over in {self.fails_over_in_s:.1f}s"
        return f"{self.path} HEALTHY -> SUSPECT: {self.reason}{after}"


@dataclass(frozen=True, slots=True)
class FailedOver(Event):
    """→ FAILED_OVER; → HELD_OVER when an operator asked for it (`forced`)."""

    path: str
    "Entity whose messages now go to a backlog queue."
    after_s: float
    "Seconds since the first counting failure."
    failed_sends: int
    reason: str
    forced: bool = False

    def __str__(self) -> str:
        if self.forced:
            return f"{self.path} -> HELD_OVER by hand: {self.reason}"
        sends = "1 failed send" if self.failed_sends == 1 else f"{self.failed_sends} failed sends"
        return f"{self.path} -> FAILED_OVER after {self.after_s:.1f}s, {sends}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """SUSPECT, FAILED_OVER or HELD_OVER → HEALTHY."""

    path: str
    after_s: float
    "Seconds spent in the state that ended."
    diverted: int
    "Messages that went to a backlog queue or the spool meanwhile."
    by: str
    "Proof of health: a send, a ping, a trial, an operator."

    def __str__(self) -> str:
        messages = "1 message" if self.diverted == 1 else f"{self.diverted} messages"
        return f"{self.path} -> HEALTHY by {self.by} after {self.after_s:.1f}s, {messages} diverted"


@dataclass(frozen=True, slots=True)
class ReceivingInterrupted(Event):
    """Nothing comes from an entity, and not because it is empty. Receivers connect again by themselves."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} nothing is received: {self.reason}"


@dataclass(frozen=True, slots=True)
class ReceivingResumed(Event):
    path: str
    after_s: float
    "Seconds since the interruption was told."

    def __str__(self) -> str:
        return f"{self.path} is received from again, after {self.after_s:.1f}s"


@dataclass(frozen=True, slots=True)
class PingSent(Event):
    path: str
    accepted: bool
    reason: str
    "Reason of the refusal; empty when accepted."

    def __str__(self) -> str:
        return f"{self.path} ping {'accepted' if self.accepted else 'failed: ' + self.reason}"


@dataclass(frozen=True, slots=True)
class PingRefused(Event):
    """A ping was answered with not found or unauthorized: waiting will not help. Told once for each failover."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} stays FAILED_OVER: the ping was refused: {self.reason}"


@dataclass(frozen=True, slots=True)
class Diverted(Event):
    """A message, or several of one send, were stored in a backlog queue or in the spool."""

    path: str
    queue: str
    "The backlog queue; `spool` when neither namespace took them."
    count: int
    message_ids: tuple[str, ...]
    outcome_unknown: bool
    "True: the primary may have stored the messages as well."

    def __str__(self) -> str:
        return f"{self.path} diverted {self.count} to {self.queue}"


@dataclass(frozen=True, slots=True)
class BacklogQueueFailed(Event):
    queue: str
    reason: str
    back_in_s: float

    def __str__(self) -> str:
        return f"{self.queue} out of rotation for {self.back_in_s:.0f}s: {self.reason}"


@dataclass(frozen=True, slots=True)
class BacklogQueueBack(Event):
    queue: str

    def __str__(self) -> str:
        return f"{self.queue} back in rotation"


@dataclass(frozen=True, slots=True)
class Spooled(Event):
    path: str
    count: int
    waiting: int
    "Messages in the spool now."

    def __str__(self) -> str:
        return f"{self.path} spooled {self.count}, {self.waiting} waiting on this machine"


@dataclass(frozen=True, slots=True)
class SpoolForwarded(Event):
    path: str
    count: int
    to: str
    "`primary`, or the backlog queue."
    waiting: int
    message_ids: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path} forwarded {self.count} from the spool to {self.to}, {self.waiting} waiting"


@dataclass(frozen=True, slots=True)
class SpoolRefused(Event):
    """A spooled message cannot be forwarded: it stays in the spool as refused, and the messages behind it go on."""

    path: str
    message_id: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} message {self.message_id} is refused and stays in the spool: {self.reason}"


@dataclass(frozen=True, slots=True)
class Moved(Event):
    """The syphon brought messages home."""

    path: str
    queue: str
    count: int
    message_ids: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path} moved {self.count} from {self.queue}"


@dataclass(frozen=True, slots=True)
class MaybeDuplicated(Event):
    """A message with an unknown outcome came home later than duplicate detection remembers, or may do so."""

    path: str
    message_id: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} message {self.message_id} may be there twice: {self.reason}"

    @classmethod
    def late(cls, path: str, message_id: str, late_s: float) -> MaybeDuplicated:
        return cls(path, message_id, f"it came home after {late_s:.0f}s")

    @classmethod
    def unanswered(cls, path: str, message_id: str, queue: str) -> MaybeDuplicated:
        """Make the event for a copy in the backlog queue, if there is one, that has no mark of an unknown outcome."""
        return cls(path, message_id, f"{queue} did not answer and may have stored it too")


@dataclass(frozen=True, slots=True)
class DestinationSkipped(Event):
    """A destination failed; its messages stay in the backlog queue."""

    path: str
    queue: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} skipped in this pass over {self.queue}: {self.reason}"


@dataclass(frozen=True, slots=True)
class DeadLettered(Event):
    queue: str
    message_id: str
    reason: str
    description: str

    def __str__(self) -> str:
        return f"{self.queue} message {self.message_id} dead-lettered: {self.reason}: {self.description}"


@dataclass(frozen=True, slots=True)
class Stayed(Event):
    """Dead letters that could not be re-driven: they stay in their queue, and need an operator."""

    queue: str
    count: int
    message_ids: tuple[str, ...]
    reason: str
    description: str

    def __str__(self) -> str:
        which = f"message {self.message_ids[0]} stays" if self.count == 1 else f"{self.count} messages stay"
        return f"{self.queue} {which} dead-lettered: {self.reason}: {self.description}"


@dataclass(frozen=True, slots=True)
class PumpPaused(Event):
    """A pump waits before it goes back to its queue: no message could be delivered, or the queue cannot be read."""

    queue: str
    reason: str
    for_s: float

    def __str__(self) -> str:
        return f"{self.queue} pump pauses {self.for_s:.1f}s: {self.reason}"


@dataclass(frozen=True, slots=True)
class NotCompleted(Event):
    """Messages are at home, but the secondary could not store their completion. Told once, until it can again."""

    queue: str
    count: int
    "Messages of this queue that are known to be at home."
    reason: str

    def __str__(self) -> str:
        which = "1 message is" if self.count == 1 else f"{self.count} messages are"
        return (
            f"{self.queue}: {which} at home, but the secondary cannot complete them: {self.reason}."
            " The queue is left alone, and they are not sent again"
        )


@dataclass(frozen=True, slots=True)
class PrimaryUnreachable(Event):
    """No connection to the primary can be opened: the syphon holds no messages, and tries again after a pause."""

    primary: str
    reason: str
    for_s: float
    "Seconds since the first failure."
    next_try_s: float | None
    "Seconds until the next try; None for a single drain, which ends."

    def __str__(self) -> str:
        again = "" if self.next_try_s is None else f"; next try in {self.next_try_s:.0f} s"
        return f"primary {self.primary} unreachable for {self.for_s:.0f} s{again}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PrimaryReachable(Event):
    """The primary answers again, and the syphon goes on."""

    primary: str
    after_s: float

    def __str__(self) -> str:
        return f"primary {self.primary} answers again after {self.after_s:.0f} s"


@dataclass(frozen=True, slots=True)
class Faulted(Event):
    side: str
    "`primary` or `secondary`."
    reason: str

    def __str__(self) -> str:
        return f"{self.side} faulted: {self.reason}"


@dataclass(frozen=True, slots=True)
class Closed(Event):
    primary: str
    secondary: str | None
    "None: the client has no secondary."

    def __str__(self) -> str:
        return f"{self.primary}{'' if self.secondary is None else f' and {self.secondary}'} closed"
