"""The state of each entity, which decides where its sends go.

Laws of this file.
 1. `TRANSITIONS` is the state machine; a pair without a row changes nothing. No other file assigns `state`.
 2. A failure of one entity does not change the state of another.
 3. Time is an argument; `next_due` returns the time at which `tick` has something to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from pairbus.pairing.events import Event, FailedOver, Recovered, Suspected


class State(Enum):
    HEALTHY = "HEALTHY"
    "Sends go to the primary, as with the plain SDK."
    SUSPECT = "SUSPECT"
    "Sends still go to the primary, and their errors reach the caller; the failover clock runs."
    FAILED_OVER = "FAILED_OVER"
    "No send goes to the primary; pings ask whether it is back."
    HELD_OVER = "HELD_OVER"
    "Failed over because an operator asked for it: only an operator ends this state."


class Signal(Enum):
    SEND_FAILED = "a counting failure"
    SEND_ACCEPTED = "a send was accepted"
    INTERVAL_OVER = "the failover interval is over"
    PING_ACCEPTED = "pings were accepted"
    TRIAL_ACCEPTED = "the trial send was accepted"
    FORCED_OVER = "force_failover"
    FORCED_HEALTHY = "force_healthy"


HEALTHY, SUSPECT, FAILED_OVER, HELD_OVER = State.HEALTHY, State.SUSPECT, State.FAILED_OVER, State.HELD_OVER

TRANSITIONS: dict[tuple[State, Signal], State] = {
    (HEALTHY, Signal.SEND_FAILED): SUSPECT,  # the failover clock starts here, once
    (SUSPECT, Signal.SEND_ACCEPTED): HEALTHY,  # one success outweighs many failures
    (SUSPECT, Signal.INTERVAL_OVER): FAILED_OVER,
    (FAILED_OVER, Signal.PING_ACCEPTED): HEALTHY,
    (FAILED_OVER, Signal.TRIAL_ACCEPTED): HEALTHY,
    (HEALTHY, Signal.FORCED_OVER): HELD_OVER,
    (SUSPECT, Signal.FORCED_OVER): HELD_OVER,
    (FAILED_OVER, Signal.FORCED_OVER): HELD_OVER,
    (SUSPECT, Signal.FORCED_HEALTHY): HEALTHY,
    (FAILED_OVER, Signal.FORCED_HEALTHY): HEALTHY,
    (HELD_OVER, Signal.FORCED_HEALTHY): HEALTHY,
}


class SendingEntity:
    """One queue or topic of the primary, with its state for all senders."""

    __slots__ = (
        "busy_since",
        "diverted",
        "failed_sends",
        "path",
        "reason",
        "since",
        "spooled",
        "state",
        "suspect_since",
        "trial",
    )

    def __init__(self, path: str, now: float) -> None:
        self.path = path
        self.reset(now)

    def reset(self, now: float) -> None:
        self.state = HEALTHY
        self.since = now
        "Time at which this state began."
        self.suspect_since = now
        "Time of the first counting failure; has a meaning from SUSPECT on."
        self.failed_sends = 0
        "Counting failures since the last success."
        self.diverted = 0
        "Messages that were diverted since the entity failed over."
        self.spooled = 0
        "Number of diverted messages that the local spool took."
        self.reason = ""
        "Text of the last counting failure."
        self.trial = False
        "True: a probe succeeded, and the next send may try the primary, once."
        self.busy_since: float | None = None
        "Time since when the entity was throttled without a success; None: it is not."

    def __repr__(self) -> str:
        return f"<Entity {self.path} {self.state.value}>"


class Failover:
    """All entities of one client."""

    def __init__(
        self, failover_interval_s: float | None, changed: Callable[[SendingEntity, Event, float], None]
    ) -> None:
        self._interval_s = failover_interval_s
        "None: there is no other place, so a suspicion lasts until a send is accepted."
        self._changed = changed
        "Function that is told every transition, after it happened."
        self._entities: dict[str, SendingEntity] = {}
        self._suspects: dict[str, SendingEntity] = {}

    def __iter__(self) -> Iterator[SendingEntity]:
        return iter(list(self._entities.values()))  # another thread may add one meanwhile

    def entity(self, path: str, now: float) -> SendingEntity:
        """Return the entity of this path, in any case; a path that is empty or not text is refused."""
        if not path:  # the text of the SDK's own error
            raise ValueError("Queue/Topic name is missing. Please specify queue_name/topic_name.")
        if not isinstance(path, str):
            raise TypeError(f"the name of a queue or topic must be a str, not {type(path).__name__}")
        key = path.lower()
        known = self._entities.get(key)
        # Threads may ask for a new path at the same moment: only one of their entities is kept.
        return self._entities.setdefault(key, SendingEntity(path, now)) if known is None else known

    def forget(self, now: float) -> None:
        """Make every entity HEALTHY and stop all clocks. Senders keep their entities."""
        for entity in self._entities.values():
            entity.reset(now)
        self._suspects.clear()

    # ── signals ──

    def failed(self, entity: SendingEntity, reason: str, now: float) -> None:
        """Note a counting failure, after its retries."""
        entity.failed_sends += 1
        entity.reason = reason
        if entity.state is HEALTHY:
            entity.suspect_since = now
        self._apply(entity, Signal.SEND_FAILED, now)
        self.settle(entity, now)

    def accepted(self, entity: SendingEntity, now: float, *, trial: bool = False) -> None:
        entity.busy_since = None
        if entity.state is not HEALTHY:
            self._apply(entity, Signal.TRIAL_ACCEPTED if trial else Signal.SEND_ACCEPTED, now)

    def pinged(self, entity: SendingEntity, now: float) -> None:
        """Note that as many pings in a row as required were accepted."""
        self._apply(entity, Signal.PING_ACCEPTED, now)

    def force(self, entity: SendingEntity, signal: Signal, now: float) -> None:
        if signal is Signal.FORCED_OVER:
            entity.reason = "an operator asked for it"
        self._apply(entity, signal, now)

    def settle(self, entity: SendingEntity, now: float) -> State:
        """Return the state at this moment: a suspicion whose interval is over ends here, if it did not in `tick`."""
        interval_s = self._interval_s
        if entity.state is SUSPECT and interval_s is not None and now >= entity.suspect_since + interval_s:
            self._apply(entity, Signal.INTERVAL_OVER, now)
        return entity.state

    def tick(self, now: float) -> None:
        for entity in list(self._suspects.values()):
            self.settle(entity, now)

    def next_due(self) -> float | None:
        """Return the time at which the next suspicion becomes a failover."""
        if self._interval_s is None:
            return None
        return min((entity.suspect_since + self._interval_s for entity in self._suspects.values()), default=None)

    def _apply(self, entity: SendingEntity, signal: Signal, now: float) -> None:
        after = TRANSITIONS.get((entity.state, signal))
        if after is None:
            return
        lasted_s, entity.state, entity.since, entity.trial = now - entity.since, after, now, False
        self._suspects.pop(entity.path.lower(), None)
        event: Event
        if after is SUSPECT:
            self._suspects[entity.path.lower()] = entity
            event = Suspected(entity.path, entity.reason, self._interval_s)
        elif after is HEALTHY:
            event = Recovered(entity.path, lasted_s, entity.diverted, _PROOFS[signal])
            entity.diverted = entity.spooled = entity.failed_sends = 0
            entity.busy_since = None  # the proof of health was not throttled
        else:
            after_s = now - entity.suspect_since if entity.failed_sends else 0.0
            event = FailedOver(entity.path, after_s, entity.failed_sends, entity.reason, after is HELD_OVER)
        self._changed(entity, event, now)


_PROOFS = {
    Signal.SEND_ACCEPTED: "a send",
    Signal.PING_ACCEPTED: "a ping",
    Signal.TRIAL_ACCEPTED: "a trial send",
    Signal.FORCED_HEALTHY: "an operator",
}
