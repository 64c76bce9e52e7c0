"""Processes of a world: paired clients that send, and syphons. Each can die at any moment.

A client here sends with the genuine `client.sends.Sends`, keeps the clocks of its `Pair` and runs the genuine
`Forwarder` on its spool. A syphon is the genuine `Syphon`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from azure.servicebus.exceptions import ServiceBusError

from pairbus.client.background import SpoolWays
from pairbus.client.event_outbox import EventOutbox
from pairbus.client.metering import Meters
from pairbus.client.outgoing import ANY_PLACE, Outgoing
from pairbus.client.pinger import ping_payload
from pairbus.client.results import Origin
from pairbus.client.sends import Sends
from pairbus.errors import SpoolError
from pairbus.pairing.commands import Command, Reply, Unsent
from pairbus.pairing.events import BacklogQueueBack, Event, MaybeDuplicated, PingSent, Recovered
from pairbus.pairing.failover import SendingEntity
from pairbus.pairing.pair import Pair
from pairbus.pairing.policy import Failure, Kind
from pairbus.spool import Spool
from pairbus.spool.forwarder import Forwarder
from pairbus.spool.lanes import Inflow
from pairbus.syphon import Syphon, SyphonSettings
from pairbus.telemetry.counters import Counters
from pairbus.transport import TransportError
from pairbus.transport.errors import failure_of
from tests.sim.broker import wall_ms
from tests.sim.checker import Call
from tests.sim.disk import SpoolModel
from tests.sim.wire import SimCarrier

if TYPE_CHECKING:
    from tests.sim.broker import Namespace
    from tests.sim.world import World


class Process:
    """Tasks and connections that die together."""

    carrier_class = SimCarrier

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self._tasks: list[asyncio.Task[Any]] = []
        self._carriers: list[SimCarrier] = []

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.is_alive:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.world.found.append(f"fell: {self.name}: {error!r} at {where.filename}:{where.lineno}")

    def carrier(self, namespace: Namespace, role: str) -> SimCarrier:
        carrier = self.carrier_class(self.world.net, namespace, f"{self.name} {role}")
        self._carriers.append(carrier)
        return carrier

    def publish(self, event: Event) -> None:
        self.world.trace(f"{self.name}: {event}")
        if isinstance(event, MaybeDuplicated):
            self.world.history.reported.add(event.message_id)

    def crash(self) -> None:
        """Between one instruction and the next: nothing is said or written any more."""
        self.is_alive = False
        self.world.trace(f"{self.name} dies")
        for carrier in self._carriers:
            carrier.die()
        for task in self._tasks:
            task.cancel()


class SimState:
    """The memory of a simulated client, in the shape of `PairState` as far as sends and the spool's ways look at it."""

    is_closed = is_faulted = False

    def __init__(self, world: World, spool: SpoolModel | None, listener: Callable[[Event], None]) -> None:
        self.options = world.options
        self.counters = Counters()
        self.meters = Meters(None, {})
        self.events = EventOutbox(self.counters, None, listener)
        self.pair = Pair(world.options, self.events.publish, world.dice.randrange)
        self.inflow = Inflow()
        self.warned: set[str] = set()
        self.places = ANY_PLACE
        self.spool = SimpleNamespace(
            open_spool=spool, disk=world.loop, is_open=spool is not None, waiting=0 if spool is None else spool.waiting
        )
        self._loop = world.loop

    def entity(self, path: str) -> SendingEntity:
        return self.pair.entity(path, self._loop.time())

    def waits(self, entity: SendingEntity) -> bool:
        spool = self.spool.open_spool
        return spool is not None and spool.has(entity.path)

    def check(self) -> None:
        """The client is open as long as its process lives."""


class TracedSends(Sends):
    """The genuine sends, told step by step."""

    world: World
    name: str

    async def _perform(self, origin: Origin, outgoing: Outgoing, command: Command) -> Reply:
        self.world.trace(f"{self.name} {outgoing.ids}: {command}")
        reply = await super()._perform(origin, outgoing, command)
        self.world.trace(f"{self.name} {outgoing.ids}: {reply.failure or 'ok'}")
        return reply


class SenderProcess(Process):
    """A paired client: the genuine sends, pair and forwarder, and clocks like those of `client.background`."""

    def __init__(self, world: World, name: str, spool: SpoolModel | None) -> None:
        super().__init__(world, name)
        self.spool = spool
        self.state = SimState(world, spool, self._heard)
        self.pair = self.state.pair
        if world.is_paired:
            self.pair.paired_with([queue.path for queue in world.secondary.queues.values()])
        self.sends = TracedSends(
            cast(Any, self.state),
            {"primary": self.carrier(world.primary, "direct"), "secondary": self.carrier(world.secondary, "direct")},
            asyncio.Event(),
            world.loop.time,
        )
        self.sends.world, self.sends.name = world, name
        self._changed = asyncio.Event()
        self._forwarder: Forwarder | None = None
        self._origins: dict[str, Origin] = {}

    def start(self) -> None:
        self.spawn(self._keep_clocks())
        if self.spool is not None:
            forwarder = Forwarder(
                cast(Spool, self.spool),
                SpoolWays(cast(Any, self.state)),
                self.carrier(self.world.primary, "spool"),
                self.carrier(self.world.secondary, "spool"),
                publish=self._heard,
            )
            self._forwarder = forwarder
            self.spawn(forwarder.run())

    def _heard(self, event: Event) -> None:
        self.publish(event)
        self._changed.set()
        probed = isinstance(event, PingSent) and event.accepted
        if self._forwarder is not None and (probed or isinstance(event, Recovered | BacklogQueueBack)):
            self._forwarder.retry_now()

    def crash(self) -> None:
        super().crash()
        if self.spool is not None:
            # Messages that were forwarded and not yet removed from the spool are forwarded again.
            self.world.history.excuse(entry.message_id for entry in self.spool.disk.waiting.values())
            self.spool.die()

    async def send(self, call: Call, timeout_s: float) -> None:
        """Write into the call what its caller is told."""
        world, began = self.world, self.world.loop.time()
        origin = self._origins.get(call.path)
        if origin is None:
            origin = self._origins[call.path] = Origin(cast(Any, self.state), call.path, None)
        try:
            outgoing = Outgoing([call.payload], [call.message_id], is_batch=False)
            call.receipt = (await self.sends.send(origin, outgoing, timeout_s)).where
        except (ServiceBusError, SpoolError) as error:
            unsent = error.__context__
            assert isinstance(unsent, Unsent), repr(error)
            call.may_be_stored, call.refusal = unsent.outcome_unknown, f"{unsent.where.value}: {unsent}"
        late_s = world.loop.time() - began - timeout_s
        if late_s > LATE_MAX_S:
            world.found.append(f"late: {call.message_id} ended {late_s:.2f} s after its time-out")

    async def _keep_clocks(self) -> None:
        loop, pair = self.world.loop, self.pair
        while True:
            self._changed.clear()
            pair.tick(loop.time())
            for entity in pair.pings.due(loop.time()):
                self.spawn(self._ping(entity))
            wake_at = pair.next_due()
            self.state.events.deliver()
            try:
                async with asyncio.timeout_at(wake_at):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _ping(self, entity: SendingEntity) -> None:
        pair, failure = self.pair, None
        carrier = self.carrier(self.world.primary, "ping")
        probe = self.world.options.ping == "attach"
        try:
            async with asyncio.timeout(pair.pings.timeout_s):
                sender = await carrier.sender(entity.path, pair.pings.timeout_s)
                if not probe:
                    await sender.send(PING, timeout_s=pair.pings.timeout_s)
        except TransportError as error:
            failure = failure_of(error)
        except TimeoutError:
            failure = Failure(Kind.TIMEOUT, "no answer")
        pair.ping_ended(entity, failure, self.world.loop.time(), probe=probe)
        self.state.events.deliver()
        self._changed.set()
        self._carriers.remove(carrier)
        await carrier.close()


PING = ping_payload()
LATE_MAX_S = 1.0  # a write to the spool at the very end of the caller's time


class SyphonProcess(Process):
    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.syphon = Syphon(
            self.carrier(world.primary, "syphon"),
            self.carrier(world.secondary, "syphon"),
            [queue.path for queue in world.secondary.queues.values()],
            settings=SyphonSettings.of(world.options),
            publish=self.publish,
            clock=world.loop.time,
            wall_ms=lambda: wall_ms(world.loop.time()),
        )

    def start(self) -> None:
        self.spawn(self.syphon.run())
