"""What a paired client does besides sending: clocks, pings, the syphon, the spool's way out, pairing late, faults.

All of it is asyncio on our own transport. It runs in the event loop of `aio`'s client, and in a thread with a loop of
its own for the other one, which starts it when there is something to do.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

from pairbus import telemetry
from pairbus.amqp.message import Header, Message, Properties
from pairbus.errors import PairbusError
from pairbus.forwarder import Forwarder
from pairbus.hub import Hub
from pairbus.pairing.events import BacklogQueueBack, Event, PingSent, Recovered
from pairbus.pairing.failover import Entity
from pairbus.pairing.forwarding import PRIMARY, Way
from pairbus.pairing.pair import Route
from pairbus.pairing.pings import CONTENT_TYPE, TIME_TO_LIVE_S
from pairbus.pairing.policy import Failure, Kind, Reaction
from pairbus.sides import Side
from pairbus.syphon import Syphon, SyphonSettings
from pairbus.transport import Connection, TransportError, connect
from pairbus.transport.carrier import HIDES_PINGS, Carrier
from pairbus.wire_failures import failure_of

logger = logging.getLogger("pairbus.upkeep")

PUMP_GRACE_S = 5.0  # for pumps to finish what they hold when the client is closed
LOOK_S = 1.0  # between two looks at whether a side is gone
PAIR_AGAIN_S = 30.0
BEGIN_AGAIN_S = 5.0  # after an error of ours that ended a task: without it the client would never be whole again

PairAgain = Callable[[], Awaitable[list[str]]]


def ping_payload() -> bytes:
    """Empty, gone in a second, and with a session so that an entity that requires sessions accepts it."""
    properties = Properties(message_id=str(uuid4()), content_type=CONTENT_TYPE, group_id=str(uuid4()))
    return Message(header=Header(ttl=int(TIME_TO_LIVE_S * 1000)), properties=properties, data=[b""]).encode()


PING_BYTES = len(ping_payload())


def carrier(side: Side, connect_timeout_s: float) -> Carrier:
    return Carrier(
        side.endpoint,
        credential=side.credential,
        ssl=side.ssl,
        proxy=side.proxy,
        connect_timeout_s=connect_timeout_s,
    )


class Upkeep:
    """Runs until `stop`."""

    def __init__(self, hub: Hub, pair_again: PairAgain | None) -> None:
        self._hub = hub
        self._pair_again = pair_again
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._pings: set[asyncio.Task[None]] = set()
        self._primary = carrier(hub.primary, hub.options.connect_timeout)
        self._secondary = carrier(hub.secondary, hub.options.connect_timeout)
        self._syphon: Syphon | None = None

    def wake(self) -> None:
        """Clocks have changed. In the loop of this upkeep only."""
        self._changed.set()

    async def run(self) -> None:
        """Until `stop` was called. What ends by an error of ours is logged and begun again; the rest goes on."""
        hub = self._hub
        works: list[Callable[[], Coroutine[Any, Any, None]]] = [self._keep_clocks]
        if self._pair_again is not None:
            works.append(partial(self._pair_late, self._pair_again))
        elif hub.options.enable_syphon:
            works.append(self._run_syphon)
        if hub.options.enable_syphon:
            works.append(self._watch_sides)
        if hub.spool is not None:
            works.append(self._run_forwarder)
        tasks = [asyncio.create_task(_kept(work)) for work in works]
        try:
            await self._stopping.wait()
            if self._syphon is not None:
                await self._syphon.stop(PUMP_GRACE_S)
        finally:
            for task in (*tasks, *self._pings):
                task.cancel()
            await asyncio.gather(*tasks, *self._pings, return_exceptions=True)
            await asyncio.gather(self._primary.close(), self._secondary.close(), return_exceptions=True)

    def stop(self) -> None:
        self._stopping.set()

    # ── clocks and pings ──

    async def _keep_clocks(self) -> None:
        hub = self._hub
        while True:
            self._changed.clear()
            now = time.monotonic()
            with hub.lock:
                hub.pair.tick(now)
                due = hub.pair.pings.due(now)
                wake_at = hub.pair.next_due()
            hub.deliver()
            for entity in due:
                task = asyncio.create_task(self._ping(entity))
                self._pings.add(task)
                task.add_done_callback(self._pings.discard)
            try:
                async with asyncio.timeout(None if wake_at is None else max(wake_at - now, 0.0)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _ping(self, entity: Entity) -> None:
        """Ask once, on a connection of its own: one that is open already proves nothing about a new one."""
        hub, timeout_s = self._hub, self._hub.pair.pings.timeout_s
        # Only a link is opened, which proves less than a message that was accepted.
        probe = hub.options.ping == "attach"
        failure: Failure | None = None
        try:
            with telemetry.span("ping", {telemetry.DESTINATION: entity.path}):
                async with asyncio.timeout(timeout_s), self._visit(timeout_s) as connection:
                    if hub.options.ping == "auto":
                        probe = not connection.peer_properties.get(HIDES_PINGS)
                    sender = await connection.sender(entity.path, timeout_s=timeout_s)
                    if not probe:
                        await sender.send(ping_payload(), timeout_s=timeout_s)
        except TransportError as error:
            failure = failure_of(error)
        except TimeoutError:
            failure = Failure(Kind.TIMEOUT, f"no answer within {timeout_s:g} s")
        except Exception as error:  # a ping that never ended would be the last one of its entity
            logger.exception("%s: the ping failed", entity.path)
            failure = Failure(Kind.INTERNAL, f"{type(error).__name__}: {error}")
        outcome = "ok" if failure is None else failure.kind.value
        if not probe:  # to open a link is no operation
            hub.meter("primary", entity.path, "ping", PING_BYTES, outcome=outcome, cause="failover")
        with hub.lock:
            hub.pair.ping_ended(entity, failure, time.monotonic(), probe=probe)
        hub.deliver()
        self._changed.set()

    @asynccontextmanager
    async def _visit(self, timeout_s: float) -> AsyncIterator[Connection]:
        side = self._hub.primary
        connection = await connect(
            side.endpoint, credential=side.credential, ssl=side.ssl, proxy=side.proxy, timeout_s=timeout_s
        )
        try:
            yield connection
        finally:
            await connection.close(timeout_s=0.5)

    # ── the syphon ──

    async def _run_syphon(self) -> None:
        hub, options = self._hub, self._hub.options
        self._syphon = Syphon(
            self._primary,
            self._secondary,
            hub.pair.rotation.queues,
            settings=SyphonSettings.of(options),
            publish=hub.tell,
            meter=hub.meter_syphon,
        )
        await self._syphon.run()

    async def _watch_sides(self) -> None:
        """Where the syphon runs: a side that is gone takes the other one with it, five seconds later."""
        hub = self._hub
        while True:
            fault = hub.lives.notice(time.monotonic())
            if fault is not None:
                hub.fault(fault.side, fault.reason)
            await asyncio.sleep(LOOK_S)

    # ── the spool ──

    async def _run_forwarder(self) -> None:
        assert self._hub.spool is not None
        forwarder = Forwarder(
            self._hub.spool,
            HubWays(self._hub),
            self._primary,
            self._secondary,
            publish=self._hub.tell,
            meter=None if self._hub.ledger is None else self._hub.ledger.meter,
            missing_grace_s=self._hub.options.missing_destination_grace,
            disk=self._hub.disk,
        )

        def retry(event: Event) -> None:
            probed = isinstance(event, PingSent) and event.accepted
            if probed or isinstance(event, Recovered | BacklogQueueBack):
                forwarder.retry_now()

        self._hub.listeners.append(retry)
        try:
            await forwarder.run()
        finally:
            if retry in self._hub.listeners:  # not any more when an event loop was closed under it
                self._hub.listeners.remove(retry)

    # ── pairing late ──

    async def _pair_late(self, pair_again: PairAgain) -> None:
        """The client was told to start without its secondary: ask until it is there, whatever it answers meanwhile."""
        told = ""
        while True:
            await asyncio.sleep(PAIR_AGAIN_S)
            try:
                self._hub.paired_with(await pair_again())
                self._hub.deliver()
                break
            except PairbusError as error:
                if str(error) != told:
                    told = str(error)
                    logger.warning("not paired yet: %s", told)
        if self._hub.options.enable_syphon:
            await self._run_syphon()


class HubWays:
    """Where the spool's messages may go at a moment, and what becomes of that."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._kept: dict[str, str] = {}
        "Path → the backlog queue of its lane, as a sender keeps its own."
        self._trials: set[str] = set()
        "Paths whose next message shows whether the entity is back: every send queues behind the spool, none could."

    def way(self, path: str, now: float) -> Way | None:
        hub = self._hub
        with hub.lock:
            entity = hub.pair.entity(path, now)
            route = hub.pair.route(entity, now)
            if route is Route.TRIAL:
                self._trials.add(entity.path)
            if route is not Route.AWAY:
                return PRIMARY
            queue, events = hub.pair.rotation.pick(self._kept.get(entity.path), now)
            for event in events:
                hub.publish(event)
        hub.deliver()
        if queue is None:
            return None
        self._kept[entity.path] = queue
        return Way(queue)

    def accepted(self, path: str, way: Way, count: int, now: float) -> None:
        hub = self._hub
        with hub.lock:
            hub.inflow.left(path, count, now)
            if way.queue is None:
                entity = hub.pair.entity(path, now)
                hub.pair.accepted(entity, now, trial=entity.path in self._trials)
                self._trials.discard(entity.path)
            else:
                for event in hub.pair.rotation.accepted(way.queue):
                    hub.publish(event)
        hub.deliver()

    def failed(self, path: str, way: Way, failure: Failure, now: float) -> None:
        hub = self._hub
        with hub.lock:
            entity = hub.pair.entity(path, now)
            self._trials.discard(entity.path)
            hub.inflow.stuck(path)
            if way.queue is not None:
                if failure.kind is not Kind.BUSY:
                    for event in hub.pair.rotation.failed(way.queue, failure.text, now):
                        hub.publish(event)
            elif hub.pair.reaction(entity, failure, now) is Reaction.COUNT:
                hub.pair.failed(entity, failure, now)
        hub.deliver()


async def _kept(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        try:
            return await work()
        except Exception:  # a bug, or a disk that fails: the log has it, and what it broke off is needed
            logger.exception("an upkeep task ended; it begins again in %g s", BEGIN_AGAIN_S)
        await asyncio.sleep(BEGIN_AGAIN_S)


class UpkeepThread:
    """An upkeep in a thread with an event loop of its own."""

    def __init__(self, make: Callable[[], Upkeep]) -> None:
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._upkeep: Upkeep | None = None
        self._thread = threading.Thread(target=self._main, args=(make,), name="pairbus-upkeep", daemon=True)
        self._thread.start()

    def _main(self, make: Callable[[], Upkeep]) -> None:
        async def run() -> None:
            self._loop, self._upkeep = asyncio.get_running_loop(), make()
            self._ready.set()
            await self._upkeep.run()

        asyncio.run(run())

    def wake(self) -> None:
        self._call(lambda upkeep: upkeep.wake())

    def stop(self, grace_s: float) -> None:
        self._ready.wait(grace_s)
        self._call(lambda upkeep: upkeep.stop())
        if threading.current_thread() is not self._thread:
            self._thread.join(grace_s + 2.0)

    def _call(self, what: Callable[[Upkeep], None]) -> None:
        loop, upkeep = self._loop, self._upkeep
        if loop is not None and upkeep is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(what, upkeep)
            except RuntimeError:
                logger.debug("the upkeep has ended already")
