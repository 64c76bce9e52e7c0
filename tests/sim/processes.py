"""Processes of a world: paired clients that send, and syphons. Each can die at any moment.

A client here is a shell as thin as the genuine ones: it carries out the commands of `pairing.sending`, keeps the clocks
of its `Pair` and runs the genuine `Forwarder` on its spool. A syphon is the genuine `Syphon`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pairbus.errors import SpoolError
from pairbus.forwarder import Forwarder
from pairbus.links import BROKEN
from pairbus.pairing.envelope import Away, wrap
from pairbus.pairing.events import BacklogQueueBack, Event, MaybeDuplicated, PingSent, Recovered
from pairbus.pairing.failover import Entity, State
from pairbus.pairing.forwarding import Inflow, queueing
from pairbus.pairing.pair import Pair
from pairbus.pairing.policy import Failure, Kind
from pairbus.pairing.sending import (
    LEAST_S,
    QUICK_PAUSE_S,
    Command,
    Pause,
    Plan,
    Receipt,
    Reply,
    SenderState,
    ToBacklog,
    ToPrimary,
    ToSpool,
    Unsent,
    Where,
    first_timeout_s,
    sending,
    spool_reserve_s,
    usual_attempt,
)
from pairbus.spool import Entry, Spool
from pairbus.syphon import Syphon, SyphonSettings
from pairbus.transport import TransportError
from pairbus.upkeep import HubWays, ping_payload
from pairbus.wire_failures import failure_of
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


class SenderProcess(Process):
    """A paired client. In the shape of `Hub`, as far as `HubWays` looks at it."""

    def __init__(self, world: World, name: str, spool: SpoolModel | None) -> None:
        super().__init__(world, name)
        self.spool = spool
        self.pair = Pair(world.options, self.publish, world.dice.randrange)
        if world.is_paired:
            self.pair.paired_with([queue.path for queue in world.secondary.queues.values()])
        self.inflow = Inflow()
        self.lock = nullcontext()
        self._changed = asyncio.Event()
        self._forwarder: Forwarder | None = None
        self._senders: dict[str, SimClientSender] = {}

    def start(self) -> None:
        self.spawn(self._keep_clocks())
        if self.spool is not None:
            forwarder = Forwarder(
                cast(Spool, self.spool),
                HubWays(cast(Any, self)),
                self.carrier(self.world.primary, "spool"),
                self.carrier(self.world.secondary, "spool"),
                publish=self.publish,
            )
            self._forwarder = forwarder
            self.spawn(forwarder.run())

    def publish(self, event: Event) -> None:
        super().publish(event)
        self._changed.set()
        probed = isinstance(event, PingSent) and event.accepted
        if self._forwarder is not None and (probed or isinstance(event, Recovered | BacklogQueueBack)):
            self._forwarder.retry_now()

    def deliver(self) -> None:
        """Events are told at once here."""

    def crash(self) -> None:
        super().crash()
        if self.spool is not None:
            # What was forwarded and not yet removed is forwarded again.
            self.world.history.excuse(entry.message_id for entry in self.spool.disk.waiting.values())
            self.spool.die()

    def sender(self, path: str) -> SimClientSender:
        known = self._senders.get(path)
        if known is None:
            known = self._senders[path] = SimClientSender(self, path)
        return known

    async def _keep_clocks(self) -> None:
        loop, pair = self.world.loop, self.pair
        while True:
            self._changed.clear()
            pair.tick(loop.time())
            for entity in pair.pings.due(loop.time()):
                self.spawn(self._ping(entity))
            wake_at = pair.next_due()
            try:
                async with asyncio.timeout_at(wake_at):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _ping(self, entity: Entity) -> None:
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
        self._carriers.remove(carrier)
        await carrier.close()


PING = ping_payload()


class SimClientSender:
    """One sender of a client, with a connection of its own to each side, and a line before each."""

    def __init__(self, process: SenderProcess, path: str) -> None:
        self._process = process
        self._world = process.world
        self._state = SenderState(process.pair.entity(path, process.world.loop.time()))
        self._home = process.carrier(process.world.primary, "direct")
        self._away = process.carrier(process.world.secondary, "direct")
        self._lines = {"home": asyncio.Lock(), "away": asyncio.Lock()}
        self._counter = 0
        self._numbers: dict[str, int] = {}

    async def send(self, call: Call, timeout_s: float) -> None:
        """Write into the call what its caller is told."""
        world, process = self._world, self._process
        now = world.loop.time()
        try:
            try:
                receipt = await self._send_by_plan(call, timeout_s, now)
            finally:
                self._give_turn(call)
        except Unsent as unsent:
            call.may_be_stored, call.refusal = unsent.outcome_unknown, f"{unsent.where.value}: {unsent}"
        else:
            call.receipt = receipt.where
            if receipt.unanswered is not None:
                process.publish(MaybeDuplicated.unanswered(call.path, call.message_id, receipt.unanswered))
            if receipt.where is not Where.PRIMARY:
                process.pair.stored_away(
                    self._state.entity, receipt.queue or "spool", (call.message_id,), outcome_unknown=False
                )
        late_s = world.loop.time() - now - timeout_s
        if late_s > LATE_MAX_S:
            world.found.append(f"late: {call.message_id} ended {late_s:.2f} s after its time-out")

    async def _send_by_plan(self, call: Call, timeout_s: float, now: float) -> Receipt:
        """As the genuine shells do it: the first attempt needs no plan on a healthy entity, nor away where the queue is
        no question."""
        pair, entity, spool = self._process.pair, self._state.entity, self._process.spool
        behind, tried = spool is not None and spool.has(call.path), None
        away = None if behind else usual_attempt(pair, self._state, timeout_s)
        if entity.state is State.HEALTHY and not behind:
            first = ToPrimary(first_timeout_s(pair, timeout_s), fresh=False, trial=False)
            tried = await self._perform(first, call, now + timeout_s)
            self._world.trace(f"{self._process.name} {call.message_id}: {tried}")
            if tried.failure is None and not tried.rerouted:
                pair.accepted(entity, tried.now)
                return Receipt(Where.PRIMARY)
        elif away is not None:
            tried = await self._perform(away, call, now + timeout_s)
            self._world.trace(f"{self._process.name} {call.message_id}: {away.queue} {tried}")
            if tried.failure is None and not tried.rerouted:
                return Receipt(Where.BACKLOG, away.queue)
            tried = None if tried.rerouted else tried
        plan = sending(pair, self._state, timeout_s, now, tried=tried, tried_queue=None if away is None else away.queue)
        if behind:
            assert spool is not None
            plan = queueing(pair, self._state, timeout_s, now, self._process.inflow, partial(spool.has, call.path))
        return await self._carry_out(plan, call, now + timeout_s)

    async def _carry_out(self, plan: Plan, call: Call, deadline: float) -> Receipt:
        reply: Reply | None = None
        while True:
            try:
                command = next(plan) if reply is None else plan.send(reply)
            except StopIteration as end:
                return cast(Receipt, end.value)
            self._world.trace(f"{self._process.name} {call.message_id}: {command}")
            if not isinstance(command, ToPrimary) and not (
                isinstance(command, Pause) and command.seconds <= QUICK_PAUSE_S
            ):
                self._give_turn(call)
            reply = await self._perform(command, call, deadline)
            self._world.trace(f"{self._process.name} {call.message_id}: {reply.failure or 'ok'}")

    async def _perform(self, command: Command, call: Call, deadline: float) -> Reply:
        loop, pair, entity = self._world.loop, self._process.pair, self._state.entity
        if isinstance(command, Pause):
            await asyncio.sleep(command.seconds)
            return Reply(loop.time())
        if isinstance(command, ToSpool):
            failure = await self._to_spool(command, call)
            return Reply(loop.time(), failure)
        is_home, failure = isinstance(command, ToPrimary), None
        line = self._lines["home" if is_home else "away"]
        if not (is_home and call.has_turn) and not await self._stand_in_line(line, call, deadline):
            return Reply(loop.time(), Failure(Kind.TIMEOUT, "the line was too long"), waited=True)
        call.has_turn = call.has_turn or is_home
        try:
            if isinstance(command, ToPrimary):
                if not command.trial and pair.is_away(entity, loop.time()):
                    return Reply(loop.time(), rerouted=True)
                share = replace(
                    command, timeout_s=min(command.timeout_s, first_timeout_s(pair, deadline - loop.time()))
                )
                failure = await self._attempt(self._home, call.path, call.payload, share, deadline)
            else:
                if not pair.rotation.has(command.queue):
                    return Reply(loop.time(), rerouted=True)
                payload = wrap(call.payload, self._about(call, command.first_attempt_at))
                failure = await self._attempt(self._away, command.queue, payload, command, deadline)
        finally:
            if not is_home:
                line.release()
            elif failure is None:
                self._give_turn(call)
        return Reply(loop.time(), failure)

    async def _stand_in_line(self, line: asyncio.Lock, call: Call, deadline: float) -> bool:
        loop = self._world.loop
        came = loop.time()
        try:
            async with asyncio.timeout_at(deadline - spool_reserve_s(self._process.pair)):
                await line.acquire()
        except TimeoutError:
            return False
        finally:
            call.waited_s += loop.time() - came
        if deadline - loop.time() >= LEAST_S:
            return True
        line.release()
        return False

    def _give_turn(self, call: Call) -> None:
        if call.has_turn:
            call.has_turn = False
            self._lines["home"].release()

    async def _attempt(
        self, carrier: SimCarrier, path: str, payload: bytes, command: ToPrimary | ToBacklog, deadline: float
    ) -> Failure | None:
        loop = self._world.loop
        until = min(deadline, loop.time() + command.timeout_s)
        if command.fresh:
            await carrier.drop()
        try:
            sender = await carrier.sender(path, until - loop.time())
            await sender.send(payload, timeout_s=until - loop.time())
        except TransportError as error:
            failure = failure_of(error)
            if failure.kind in BROKEN:
                await carrier.drop()
            return failure
        return None

    async def _to_spool(self, command: ToSpool, call: Call) -> Failure | None:
        about, spool = self._about(call, command.first_attempt_at), self._process.spool
        assert spool is not None
        entry = Entry(
            *(call.path, call.payload, call.message_id, about.first_attempt_ms, about.sender, about.counter),
            wall_ms(self._world.loop.time()),
        )
        self._process.inflow.came(call.path, 1, self._world.loop.time())
        try:
            await asyncio.to_thread(spool.append, [entry])
        except SpoolError as error:
            return Failure(Kind.INTERNAL, str(error), error=error)
        return None

    def _about(self, call: Call, first_attempt_at: float | None) -> Away:
        about = Away(call.path, None if first_attempt_at is None else wall_ms(first_attempt_at))
        if not self._world.options.ordered:
            return about
        number = self._numbers.get(call.message_id)
        if number is None:
            self._counter += 1
            number = self._numbers[call.message_id] = self._counter
        return replace(about, sender=f"{self._process.name} {call.path}", counter=number)


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
