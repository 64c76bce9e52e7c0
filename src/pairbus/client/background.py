"""Background tasks of a paired client: clocks, pings, the syphon, the spool's way out, late pairing, lost sides.

They run in the engine's event loop and start when there is something to do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from pairbus import telemetry
from pairbus.client.pinger import PING_BYTES, Pinger
from pairbus.client.state import PairState
from pairbus.errors import PairbusError, SpoolError
from pairbus.pairing.events import BacklogQueueBack, Event, PingSent, Recovered
from pairbus.pairing.failover import FAILED_OVER, SendingEntity
from pairbus.pairing.pair import Route
from pairbus.pairing.policy import Failure, Kind, Reaction
from pairbus.pairing.provision import ATTEMPTS
from pairbus.pairing.side_states import PairSide
from pairbus.spool import Spool
from pairbus.spool.forwarder import Forwarder
from pairbus.spool.lanes import PRIMARY, Way
from pairbus.syphon import Syphon, SyphonSettings
from pairbus.transport import Carrier, TransportError
from pairbus.transport.errors import failure_of
from pairbus.transport.tasks import Tasks, kept
from pairbus.transport.threads import outcome_of

logger = logging.getLogger("pairbus.background")

PUMP_GRACE_S = 5.0  # for pumps to finish what they hold when the client is closed
LOOK_S = 1.0  # between two looks at whether a side is gone
PAIR_AGAIN_S = 30.0
MORE_QUEUES = "the creation of more backlog queues"
OPEN_AGAIN_S = 30.0  # after a spool could not be opened

PairAgain = Callable[[], Awaitable[list[str]]]


class Background:
    """The background tasks of one engine, until `stop`.

    `pair_again` finds or creates the backlog queues. `late`: the client started without its secondary.
    """

    def __init__(
        self, state: PairState, carriers: Mapping[PairSide, Carrier], pair_again: PairAgain, *, late: bool
    ) -> None:
        self._state = state
        self._primary, self._secondary = carriers["primary"], carriers["secondary"]
        self._pair_again = pair_again
        self._is_late = late
        self._changed = asyncio.Event()
        self._tasks = Tasks()
        self._watch = Tasks()
        "The watch over both sides, which goes on when the client is faulted."
        self._syphon: Syphon | None = None
        self._pinger = Pinger(partial(state.primary.new_carrier, state.options.connect_timeout), state.options.ping)
        if state.options.enable_syphon:
            self._keep(self._watch, self._watch_sides, "the watch over both sides")
        for what, work in self._works().items():
            self._keep(self._tasks, work, what)

    def _works(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        state = self._state
        works: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {"the clock of failovers": self._keep_clocks}
        if self._is_late:
            works["the late pairing"] = self._pair_late
        elif state.options.enable_syphon:
            works["the syphon"] = self._run_syphon
        if state.lacks_queues and not self._is_late:
            works[MORE_QUEUES] = self._complete_queues
        if state.pair.has_spool:
            works["the forwarder of the spool"] = self._run_forwarder
        return works

    def _keep(self, tasks: Tasks, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        tasks.start(kept(work, f"{self._state.primary.name}: {what}"), what)

    def wake(self) -> None:
        """Look at the clocks: they may have changed."""
        self._changed.set()

    async def stop(self, grace_s: float) -> None:
        """End every task. Pumps get `grace_s` seconds to finish what they hold."""
        if self._syphon is not None and not self._state.is_faulted:
            await self._syphon.stop(grace_s)
        self.halt()
        self._watch.cancel()
        await self._tasks.ended()
        await self._watch.ended()

    def halt(self) -> None:
        """End pings and pumps at once, because the client was faulted. The other side is still watched."""
        self._tasks.cancel()

    # ── clocks and pings ──

    async def _keep_clocks(self) -> None:
        pair = self._state.pair
        while True:
            self._changed.clear()
            now = time.monotonic()
            pair.tick(now)
            for entity in pair.pings.due(now):
                self._tasks.start(
                    self._ping(entity), f"a ping of {entity.path}", failed=partial(self._ping_failed, entity)
                )
            wake_at = pair.next_due()
            self._state.events.deliver()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wake_at is None else max(wake_at - now, 0.0)):
                    await self._changed.wait()

    async def _ping(self, entity: SendingEntity) -> None:
        """Ping once, on the new connection that pings share."""
        state, timeout_s = self._state, self._state.pair.pings.timeout_s
        failure: Failure | None = None
        try:
            with telemetry.span("ping", {telemetry.DESTINATION: entity.path}):
                await self._pinger.ping(entity.path, timeout_s)
        except TransportError as error:
            failure = failure_of(error)
        except TimeoutError:
            failure = Failure(Kind.TIMEOUT, f"no answer within {timeout_s:g} s")
        except Exception as error:  # without an answer here, the entity would never be pinged again
            logger.exception("%s: the ping failed", entity.path)
            failure = Failure(Kind.INTERNAL, f"{type(error).__name__}: {error}")
        outcome = "ok" if failure is None else failure.kind.value
        probe = self._pinger.is_probe
        if not probe:  # to open a link is no operation
            state.meters.count("primary", entity.path, "ping", PING_BYTES, outcome=outcome, cause="failover")
        state.pair.ping_ended(entity, failure, time.monotonic(), probe=probe)
        state.events.deliver()
        self._changed.set()

    def _ping_failed(self, entity: SendingEntity, error: BaseException) -> None:
        """Ping again later: a ping whose end is never noted would be the last one of its entity."""
        self._state.pair.pings.ended(entity, accepted=False, now=time.monotonic())
        self._changed.set()

    # ── the syphon ──

    async def _run_syphon(self) -> None:
        """Run the syphon, with a carrier of its own: it drops connections of the primary that may be silent, and sends
        of the application must not be on them."""
        state = self._state
        async with state.primary.new_carrier(state.options.connect_timeout) as home:
            self._syphon = Syphon(
                home,
                self._secondary,
                state.pair.rotation.queues,
                settings=SyphonSettings.of(state.options),
                publish=state.events.tell,
                meter=state.meters.syphon,
            )
            state.control.watch(self._syphon.progress)
            await self._syphon.run()

    async def _watch_sides(self) -> None:
        """Fault the open side five seconds after the other one was closed or faulted; only where the syphon runs."""
        while True:
            other = self._state.side_states.side_to_fault(time.monotonic())
            if other is not None:
                self._state.fault(other.side, other.reason)
            await asyncio.sleep(LOOK_S)

    # ── the spool ──

    async def _run_forwarder(self) -> None:
        state, spool = self._state, await self._opened_spool()
        if spool is None:
            return  # the pairing was cleared before its disk answered
        ledger = state.meters.ledger
        forwarder = Forwarder(
            spool,
            SpoolWays(state),
            self._primary,
            self._secondary,
            publish=state.events.tell,
            meter=None if ledger is None else ledger.meter,
            missing_grace_s=state.options.missing_destination_grace,
            disk=state.spool.disk,
        )

        def retry(event: Event) -> None:
            probed = isinstance(event, PingSent) and event.accepted
            if probed or isinstance(event, Recovered | BacklogQueueBack):
                forwarder.retry_now()

        state.events.listeners.append(retry)
        try:
            await forwarder.run()
        finally:
            if retry in state.events.listeners:  # it is gone when the event loop was closed meanwhile
                state.events.listeners.remove(retry)

    async def _opened_spool(self) -> Spool | None:
        """Wait until the spool is open, as long as its disk takes; try again when it cannot be opened."""
        last_error = ""
        while (opening := self._state.open_spool()) is not None:
            try:
                opened = outcome_of(opening)
                await asyncio.wait([opened])
                opened.result()
                break
            except SpoolError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    logger.warning("the spool is not open: %s", last_error)
            await asyncio.sleep(OPEN_AGAIN_S)
        return self._state.spool.open_spool

    # ── pairing late ──

    async def _complete_queues(self) -> None:
        """Try again to create backlog queues that could not be created when the client was paired."""
        state = self._state
        for _ in range(ATTEMPTS - 1):
            await asyncio.sleep(PAIR_AGAIN_S)
            known = set(state.pair.rotation.queues)
            try:
                queues = await self._pair_again()
            except PairbusError as error:
                logger.warning("no more backlog queues were created: %s", error)
                continue
            finally:
                state.options.backlog_queue_count = len(known)
            if set(queues) - known:
                state.paired_with(queues)
                state.events.deliver()
                if self._syphon is not None:
                    self._syphon.adopt(queue for queue in queues if queue not in known)
            if not state.lacks_queues:
                return

    async def _pair_late(self) -> None:
        """Try to pair until the secondary answers: the client was told to start without it."""
        last_error = ""
        while True:
            await asyncio.sleep(PAIR_AGAIN_S)
            try:
                self._state.paired_with(await self._pair_again())
                self._state.events.deliver()
                break
            except PairbusError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    logger.warning("not paired yet: %s", last_error)
        if self._state.lacks_queues:
            self._keep(self._tasks, self._complete_queues, MORE_QUEUES)
        if self._state.options.enable_syphon:
            await self._run_syphon()


class SpoolWays:
    """Routes for the messages of the spool: chosen by the state of the pair, which is told how each attempt ended."""

    def __init__(self, state: PairState) -> None:
        self._state = state
        self._kept: dict[str, str] = {}
        "Path → the backlog queue of its lane; a sender keeps its queue in the same way."
        self._trials: set[str] = set()
        "Paths whose next message of the spool is the trial: sends wait behind the spool, so none can be the trial."

    def way(self, path: str, now: float) -> Way | None:
        pair = self._state.pair
        entity = pair.entity(path, now)
        route = pair.route(entity, now)
        if route is Route.TRIAL:
            self._trials.add(entity.path)
        is_granted = entity.path in self._trials and entity.state is FAILED_OVER  # the trial, which is still to be made
        if route is not Route.DIVERTED or is_granted:
            return PRIMARY
        queue, events = pair.rotation.pick(self._kept.get(entity.path), now)
        self._tell(events)
        if queue is None:
            return None
        self._kept[entity.path] = queue
        return Way(queue)

    def accepted(self, path: str, way: Way, count: int, now: float) -> None:
        pair = self._state.pair
        self._state.inflow.left(path, count, now)
        if way.queue is None:
            entity = pair.entity(path, now)
            pair.accepted(entity, now, trial=entity.path in self._trials)
            self._trials.discard(entity.path)
            self._state.events.deliver()
        else:
            self._tell(pair.rotation.accepted(way.queue))

    def failed(self, path: str, way: Way, failure: Failure, now: float) -> None:
        pair = self._state.pair
        entity = pair.entity(path, now)
        self._trials.discard(entity.path)
        self._state.inflow.stuck(path)
        silence = failure.silence
        if silence is not None and silence.lasted_s < min(pair.options.attempt_timeout, silence.allowed_s):
            return  # the peer is slow, which is no failure
        if way.queue is not None:
            if failure.kind is not Kind.BUSY:
                self._tell(pair.rotation.failed(way.queue, failure.text, now))
        elif pair.reaction(entity, failure, now) is Reaction.COUNT:
            pair.failed(entity, failure, now)
            self._state.events.deliver()

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            self._state.events.publish(event)
        self._state.events.deliver()
