"""The memory of a client: its namespaces, its entities, its spool and its own life.

It belongs to no event loop: a client that is used by the next `asyncio.run`, or in a forked child, goes on with it.
Only code in the loop of the engine changes it; any thread may look at counters and `repr`, and make or close senders.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pairbus import telemetry
from pairbus.client.control import ClientControl
from pairbus.client.errors import ClientClosed, PairedMessagingFactoryError, SendAvailabilityBacklogError
from pairbus.client.event_outbox import EventOutbox
from pairbus.client.metering import Meters
from pairbus.client.outgoing import ANY_PLACE, ONLY_PLACE
from pairbus.client.sides import Side
from pairbus.errors import PairingError
from pairbus.host.environment import WORDS, read_switch
from pairbus.ledger import Ledger
from pairbus.pairing.events import Closed, Faulted, Paired, PairingCleared, SecondaryLost, Unpaired
from pairbus.pairing.failover import HEALTHY, SendingEntity, State
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions, primary_name_of
from pairbus.pairing.pair import Pair
from pairbus.pairing.plan import SenderState
from pairbus.pairing.policy import Reaction
from pairbus.pairing.side_states import PairSide, SideState, SideStates
from pairbus.sdk.failures import failure_of
from pairbus.spool.holder import SpoolHolder
from pairbus.spool.lanes import Inflow
from pairbus.telemetry.counters import Counters

logger = logging.getLogger("pairbus")

DISABLED = "PAIRBUS_DISABLED"
LEDGER_CLOSE_S = 2.0  # time for the last rows when a client is closed


class LinkUsers:
    """Numbers of open senders by the link that they share: senders of one path with the same `client_identifier`.

    A sender that is not closed counts as long as its client lives.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.RLock()  # a signal handler may close a sender while its thread makes another

    def add(self, path: str, link_name: str) -> None:
        with self._lock:
            self._counts[path.lower(), link_name] += 1

    def remove(self, path: str, link_name: str) -> None:
        key = path.lower(), link_name
        with self._lock:
            self._counts[key] -= 1
            if self._counts[key] <= 0:
                del self._counts[key]

    def has(self, path: str, link_name: str) -> bool:
        """Return True when an open sender uses the link."""
        with self._lock:
            return (path.lower(), link_name) in self._counts

    def after_fork(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may have held the old one


class PairState:
    """The memory of one client, of a pair or of one namespace."""

    def __init__(self, primary: Side, secondary: Side | None, options: SendAvailabilityPairedNamespaceOptions) -> None:
        self.sides: dict[PairSide, Side] = {"primary": primary}
        "The namespaces. Without a secondary there is no such row: what only a pair does would raise a KeyError."
        self.places, self.who = ONLY_PLACE, primary.name
        "Places that may have a message, the primary first, and the name of the client, as errors tell them."
        self.secondary_name: str | None = None
        if secondary is not None:
            if primary.authority.lower() == secondary.authority.lower():
                raise ValueError(f"primary and secondary are the same namespace, {primary.name}: a pair needs two")
            self.sides["secondary"] = secondary
            self.places, self.who = ANY_PLACE, f"the pair of {primary.name} and {secondary.name}"
            self.secondary_name = secondary.name
        self.primary = primary
        self.options = options
        self.primary_name = options.primary_name or primary_name_of(primary.authority)
        self.spool = self._new_spool()
        self.counters = Counters(self.spool.depth)
        ledger = None if options.ledger is None else Ledger(options.ledger, client=self.primary_name)
        self.meters = Meters(ledger, {name: side.name for name, side in self.sides.items()})
        self.events = EventOutbox(self.counters, ledger, options.on_event)
        self.pair = Pair(options, self.events.publish, random.randrange, is_alone=secondary is None)
        self.pair.enabled = secondary is not None and not _is_disabled(primary.name)
        self.side_states = SideStates()
        self.inflow = Inflow()
        self.link_users = LinkUsers()
        self.is_paired = self.pair.is_alone
        "True: pairing has completed, or there is nothing to pair, or the client was told to start unpaired."
        self.is_closed = False
        self.warned: set[str] = set()
        "Paths of entities for which the warning about large messages was logged."
        self._wanted_queues = options.backlog_queue_count
        self._told_unpaired = False
        self.processors: list[Callable[[], dict[str, Any]]] = []
        "Functions that describe the processors at work, for the control socket; any thread may call them."
        self.receivers: Callable[[], list[dict[str, Any]]] = list
        "Function that describes the receivers of the present engine, for the control socket; any thread may call it."
        self.control = ClientControl(self, options.control_socket)
        self._unregister = telemetry.register(self.primary_name, self.counters.snapshot)

    def _new_spool(self) -> SpoolHolder:
        return SpoolHolder(self.options.spool_dir, self.primary_name, self.options.spool_max_bytes)

    @property
    def secondary(self) -> Side:
        """The second namespace, for code that only a pair reaches."""
        return self.sides["secondary"]

    # ── looking ──

    def __repr__(self) -> str:
        ended, is_alone = self.ended, self.pair.is_alone
        away = [] if ended else [entity for entity in self.pair.entities() if entity.state is not HEALTHY]
        names = ", ".join(f"{entity.path} {entity.state.value}" for entity in away[:3])
        state = ended or ("plain" if not (self.pair.enabled or is_alone) else names or "HEALTHY")
        more = f" and {len(away) - 3} more" if len(away) > 3 else ""
        waiting = self.spool.waiting
        spooled = f" spool={waiting}" if waiting else ""
        backlog = "" if is_alone else f" backlog={self.pair.rotation}"
        return f"{' | '.join(side.name for side in self.sides.values())} {state}{more}{backlog}{spooled}"

    def sender_repr(self, sender: SenderState) -> str:
        entity = sender.entity
        if self.ended:
            return f"{entity.path} {self.ended}"
        since_s = time.monotonic() - entity.since
        away = ""
        if entity.state is not HEALTHY and not self.pair.is_alone:
            spooled = f" spooled={entity.spooled}" if entity.spooled else ""
            away = f" backlog={self.pair.rotation} diverted={entity.diverted - entity.spooled}{spooled}"
        return f"{entity.path} {entity.state.value}{away} for {since_s:.1f}s"

    def states(self) -> dict[str, State]:
        """Return the state of every entity that was sent to."""
        now = time.monotonic()
        states = {entity.path: self.pair.failover.settle(entity, now) for entity in self.pair.entities()}
        self.events.deliver()
        return states

    @property
    def ended(self) -> str:
        """The reason why every call raises, in few words; empty while the client can be used."""
        if self.is_faulted:
            return f"faulted ({self.side_states.first}: {self.side_states.reason})"
        return "closed" if self.is_closed else ""

    # ── may the client be used? ──

    @property
    def is_faulted(self) -> bool:
        """True when every call must raise. Where no syphon runs, the primary stays usable without its secondary."""
        if not self.side_states.has_faulted:
            return False
        runs_syphon = self.options.enable_syphon and self.pair.enabled
        return runs_syphon or self.side_states.of("primary") is SideState.FAULTED

    def check(self) -> None:
        """Raise unless the client can be used."""
        if self.side_states.has_faulted and self.is_faulted:
            raise PairedMessagingFactoryError(self.who, self.side_states.reason)
        if self.is_closed:
            raise ClientClosed(self.primary.name)

    def check_receiver(self) -> None:
        """Raise when receivers of this client must end."""
        if self.is_faulted:
            self.check()

    def fault(self, side: PairSide, reason: str) -> bool:
        """Declare one side unusable; True when it was not declared before."""
        if not self.side_states.end(side, SideState.FAULTED, reason):
            return False
        self.events.publish(Faulted(side, reason))
        if self.pair.enabled and not self.is_faulted:
            self.pair.rotation.is_lost = True
            self.events.publish(SecondaryLost(self.primary.name, self.secondary.name, reason))
        self.events.deliver()
        return True

    # ── pairing ──

    @property
    def clocks_run(self) -> bool:
        return self.pair.enabled and self.pair.next_due() is not None

    @property
    def lacks_queues(self) -> bool:
        """True when the client is paired, and some of its backlog queues could not be created."""
        return 0 < len(self.pair.rotation.queues) < self._wanted_queues

    def open_spool(self) -> Future[None] | None:
        """Begin to open the spool; None when there is none, or it is open. It is closed again if it comes too late."""
        return self.spool.begin_to_open(lambda: self.pair.enabled and not self.is_closed)

    @property
    def needs_background(self) -> bool:
        """True when there is something to do besides sending."""
        return self.pair.enabled and (
            self.options.enable_syphon or self.pair.has_spool or self.lacks_queues or self.clocks_run
        )

    def pairing_begins(self) -> None:
        """Reset the option, which after an earlier try holds the number of queues that was found."""
        self.options.backlog_queue_count = self._wanted_queues

    def paired_with(self, queues: list[str]) -> None:
        self.options.backlog_queue_count = len(queues)
        self.pair.paired_with(queues)
        self.events.publish(Paired(self.primary.name, self.secondary.name, len(queues)))

    def may_start_unpaired(self, error: BaseException) -> bool:
        """Tell whether the client may start without its secondary; otherwise the caller gets the error."""
        if isinstance(error, SendAvailabilityBacklogError):
            self.options.backlog_queue_count = 0
        failure = failure_of(error)
        is_away = failure is not None and self.options.policy.reaction(failure) is not Reaction.RAISE
        if self.options.require_secondary or not (is_away or isinstance(error, SendAvailabilityBacklogError)):
            return False
        if not self._told_unpaired:
            self._told_unpaired = True
            self.events.publish(Unpaired(self.primary.name, self.secondary.name, str(error)))
        return True

    def clear_pairing(self) -> None:
        self.check()
        self.pair.clear(time.monotonic())
        self.events.tell(PairingCleared(self.primary.name))

    def force(self, path: str, *, over: bool) -> None:
        """Change the state of an entity because an operator asked for it."""
        self.check()
        is_lost = self.pair.rotation.is_lost
        if over and not self.pair.has_elsewhere and (self.is_paired or is_lost or not self.pair.enabled):
            why = f"{self.secondary.name} was lost" if is_lost else f"{self.primary.name} is not paired"
            raise PairingError(f"{path} was not failed over: {why}, sends go to {self.primary.name} only.")
        force = self.pair.force_failover if over else self.pair.force_healthy
        force(path, time.monotonic())
        self.events.deliver()

    def waits(self, entity: SendingEntity) -> bool:
        """Tell whether messages of this entity wait in the spool, and will be forwarded."""
        spool = self.spool.open_spool
        return spool is not None and self.pair.enabled and spool.has(entity.path)

    # ── other loops, other processes, the end ──

    def closed(self) -> None:
        """Tell that the client is closed: no engine is at work any more."""
        for side in self.sides:
            self.side_states.end(side, SideState.CLOSED, "close() was called")
        self.events.tell(Closed(self.primary.name, self.secondary_name))

    def after_loop(self) -> None:
        """Forget pings and listeners of an event loop that has ended."""
        self.pair.pings.forget_running()
        self.events.listeners.clear()

    def after_fork(self) -> None:
        """Forget the parent's things in a forked child: the spool, and events that are not told yet.

        The first send of the child pairs again, without a request when the queues are known, and opens a spool.
        """
        self.after_loop()
        self.receivers = list
        self.link_users.after_fork()
        self.is_paired = self.pair.is_alone
        self.events.forget()
        self.spool = self._new_spool()
        self.counters.spool_depth = self.spool.depth

    def release(self) -> None:
        """Close spool, ledger and control socket of a client that has ended; blocks for the disk. May be repeated."""
        self._unregister()
        self.control.close()
        self.spool.close(is_last=True)
        if self.meters.ledger is not None:
            self.meters.ledger.close(LEDGER_CLOSE_S)


def _is_disabled(name: str) -> bool:
    word, disabled = read_switch(DISABLED)
    if disabled:
        logger.warning("%s=%s: %s is not paired, sends go to it only", DISABLED, word, name)
    elif disabled is None:
        logger.warning("%s=%s is ignored, %s is paired: it must be one of %s", DISABLED, word, name, WORDS)
    return bool(disabled)
