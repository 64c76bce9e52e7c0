"""All decisions of one paired client: failover, rotation and pings, which are told what happened and when.

No code here waits or sends. Callers that have threads call it under one lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from pairbus.pairing.events import Diverted, Event, PingRefused, PingSent
from pairbus.pairing.failover import FAILED_OVER, HEALTHY, SUSPECT, Failover, SendingEntity, Signal
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.pings import Pings
from pairbus.pairing.policy import BUSY_WAIT_S, Failure, Kind, Reaction
from pairbus.pairing.rotation import Rotation

REFUSALS = frozenset({Kind.NOT_FOUND, Kind.UNAUTHORIZED})
"Answers to a ping that will probably stay the same: told once, while pings go on."


JITTER_STEPS = 1000


class Route(Enum):
    PRIMARY = "primary"
    TRIAL = "trial"
    "The primary, once: a probe succeeded, and this send shows whether the entity accepts messages."
    DIVERTED = "diverted"
    "A backlog queue, or the spool."


class Pair:
    """Decisions of one client. `choose(n)` picks one of n, at random or by a seed."""

    def __init__(
        self,
        options: SendAvailabilityPairedNamespaceOptions,
        publish: Callable[[Event], None],
        choose: Callable[[int], int],
        *,
        is_alone: bool = False,
    ) -> None:
        self.is_alone = is_alone
        "True: a client without a secondary. Its entities are SUSPECT while their sends fail, and never fail over."
        self.options = options
        self.policy = options.policy
        self.publish = publish
        self.failover = Failover(None if is_alone else options.failover_interval, self._on_transition)
        self.pings = Pings(
            options.ping_primary_interval, options.healthy_pings_required, lambda: choose(JITTER_STEPS) / JITTER_STEPS
        )
        self.rotation = Rotation([], options.backlog_retry_interval, choose)
        self.enabled = not is_alone
        "False: a plain client. Sends go to the primary, errors reach the caller."

    def entities(self) -> Iterator[SendingEntity]:
        return iter(self.failover)

    def entity(self, path: str, now: float) -> SendingEntity:
        return self.failover.entity(path, now)

    def paired_with(self, queues: list[str]) -> None:
        self.rotation.queues = queues

    def clear(self, now: float) -> None:
        """Forget all state and timers; the client becomes a plain client."""
        self.enabled = False
        self.failover.forget(now)
        self.pings.clear()

    # ── sends ──

    @property
    def has_spool(self) -> bool:
        return self.enabled and self.options.spool_dir is not None

    @property
    def has_elsewhere(self) -> bool:
        """True when there is another place than the primary; without one, the primary gets all the time of a send."""
        return self.has_spool or (self.enabled and self.rotation.can_divert)

    def is_diverted(self, entity: SendingEntity, now: float) -> bool:
        """Return True when no send of this entity goes to the primary at this moment."""
        if entity.state is HEALTHY or not self.enabled:
            return False
        # Without another place, sends go to the primary however often it failed.
        return self.failover.settle(entity, now) not in (HEALTHY, SUSPECT) and self.has_elsewhere

    def is_stranded(self, entity: SendingEntity) -> bool:
        """Return True when sends of this entity go to the primary only because the secondary is lost."""
        return entity.state not in (HEALTHY, SUSPECT) and self.rotation.is_lost and not self.has_elsewhere

    def route(self, entity: SendingEntity, now: float, *, may_try: bool = True) -> Route:
        """Return the destination of the entity's next send. A trial is granted once, not after a failure."""
        if not self.is_diverted(entity, now):
            return Route.PRIMARY
        if may_try and entity.trial and entity.state is FAILED_OVER:
            entity.trial = False
            return Route.TRIAL
        return Route.DIVERTED

    def accepted(self, entity: SendingEntity, now: float, *, trial: bool = False) -> None:
        """Note an accepted send. One that went to the primary for lack of another place proves as much as a trial."""
        if entity.state is HEALTHY and entity.busy_since is None:
            return
        forlorn = entity.state is FAILED_OVER and not self.has_elsewhere
        self.failover.accepted(entity, now, trial=trial or forlorn)

    def failed(self, entity: SendingEntity, failure: Failure, now: float) -> None:
        """Note a failure that counts, after its retries."""
        if self.enabled or self.is_alone:
            self.failover.failed(entity, failure.text, now)

    def note_diverted(
        self, entity: SendingEntity, queue: str, message_ids: tuple[str, ...], *, outcome_unknown: bool
    ) -> None:
        """Note that messages are stored in a backlog queue, or in the spool."""
        entity.diverted += len(message_ids)
        self.publish(Diverted(entity.path, queue, len(message_ids), message_ids, outcome_unknown))

    def reaction(self, entity: SendingEntity, failure: Failure, now: float) -> Reaction:
        """Return the policy's reaction; throttling that lasts longer than `busy_counts_after` counts as an outage."""
        reaction = self.policy.reaction(failure)
        if reaction is not Reaction.WAIT:
            return reaction
        if entity.busy_since is None:
            entity.busy_since = now
        limit_s = self.options.busy_counts_after
        return Reaction.COUNT if limit_s is not None and now - entity.busy_since >= limit_s else Reaction.WAIT

    # ── commands of the operator ──

    def force_failover(self, path: str, now: float) -> None:
        self._force(path, Signal.FORCED_OVER, now)

    def force_healthy(self, path: str, now: float) -> None:
        self._force(path, Signal.FORCED_HEALTHY, now)

    def _force(self, path: str, signal: Signal, now: float) -> None:
        self.failover.force(self.entity(path, now), signal, now)

    # ── clocks ──

    def tick(self, now: float) -> None:
        self.failover.tick(now)

    def next_due(self) -> float | None:
        """Return the time at which `tick` or `pings.due` has something to do."""
        dues = [due for due in (self.failover.next_due(), self.pings.next_due()) if due is not None]
        return min(dues, default=None)

    def ping_ended(self, entity: SendingEntity, failure: Failure | None, now: float, *, probe: bool = False) -> None:
        """Note the result of a ping; of a probe, which only opened a link, success only allows a trial."""
        accepted = failure is None
        self.publish(PingSent(entity.path, accepted, "" if failure is None else failure.text))
        if failure is not None and failure.kind in REFUSALS and self.pings.refusal_is_news(entity):
            self.publish(PingRefused(entity.path, failure.text))
        busy = failure is not None and failure.kind is Kind.BUSY
        if self.pings.ended(entity, accepted, now, wait_s=BUSY_WAIT_S if busy else 0.0):
            if probe:
                entity.trial = True
            else:
                self.failover.pinged(entity, now)

    def _on_transition(self, entity: SendingEntity, event: Event, now: float) -> None:
        """Start or stop pings: they run only while an entity is FAILED_OVER."""
        if entity.state is FAILED_OVER:
            self.pings.start(entity, now)
        else:
            self.pings.stop(entity)
        if entity.state is not SUSPECT or self.options.failover_interval > 0:
            self.publish(event)
