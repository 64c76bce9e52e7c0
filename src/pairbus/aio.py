"""`PairedServiceBusClient` for asyncio: a drop-in for `azure.servicebus.aio.ServiceBusClient`."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, cast
from uuid import uuid4

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from pairbus import sdk, telemetry
from pairbus.aio_links import GRACE_S, AsyncLink, burials
from pairbus.counters import Snapshot
from pairbus.hub import Hub, clients, order_of, timeout_of
from pairbus.outgoing import DEFAULT_LIMIT, Outgoing, batches, new_batch, outgoing
from pairbus.pairing.events import Closed, Event
from pairbus.pairing.failover import HEALTHY, State
from pairbus.pairing.life import Life
from pairbus.pairing.life import Side as SideName
from pairbus.pairing.options import SEND_TIMEOUT_S, SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.policy import Failure, Kind, Reaction
from pairbus.pairing.sending import (
    Command,
    Pause,
    Receipt,
    Reply,
    SenderState,
    ToBacklog,
    ToPrimary,
    ToSpool,
    Unsent,
    Where,
    first_timeout_s,
)
from pairbus.provisioning import provision_async
from pairbus.send_errors import ClientClosed, ScheduleWhileFailedOver
from pairbus.sides import Side
from pairbus.upkeep import PUMP_GRACE_S, Upkeep

__all__ = ["PairedSender", "PairedServiceBusClient"]

EVENTS_MAX = 10_000  # that an iterator may be behind; older ones are dropped then


class PairedServiceBusClient:
    """Sends to the primary, or to backlog queues of the secondary while the primary is away; receives from the primary.

    Belongs to one event loop; safe to share between its tasks. Made by `from_connection_strings` or `from_credential`,
    everything that it needs is made for it; the constructor takes clients of the SDK, which it then owns and closes.
    """

    def __init__(self, primary: ServiceBusClient, options: SendAvailabilityPairedNamespaceOptions) -> None:
        if options.messaging_factory is None:
            raise ValueError("options.messaging_factory is None; it must be the ServiceBusClient of the secondary")
        secondary = Side.from_client(options.messaging_factory, admin=options.secondary_namespace_manager)
        self._set_up(Side.from_client(primary), primary, secondary, options)

    def _set_up(
        self, primary: Side, client: ServiceBusClient, secondary: Side, options: SendAvailabilityPairedNamespaceOptions
    ) -> None:
        self._primary = client
        self._secondary: ServiceBusClient = options.messaging_factory
        self._hub = Hub(primary, secondary, options, contextlib.nullcontext())
        self._hub.wake = self._wake
        self._pairing = asyncio.Lock()
        self._pairings: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._upkeep: Upkeep | None = None
        self._upkeep_task: asyncio.Task[None] | None = None
        self._senders: weakref.WeakSet[PairedSender] = weakref.WeakSet()
        for given in (client, self._secondary):
            sdk.is_closed(given)  # from now on somebody else's closing is seen
        clients.add(self)

    @classmethod
    def from_connection_strings(
        cls,
        primary: str,
        secondary: str,
        *,
        primary_kwargs: Mapping[str, Any] | None = None,
        secondary_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Pair two namespaces by their connection strings.

        `primary_kwargs` and `secondary_kwargs` are keywords of ServiceBusClient for one side (proxy, web sockets,
        certificates); `options` are those of SendAvailabilityPairedNamespaceOptions.
        """
        return cls._of(
            Side.from_connection_string(primary, **(primary_kwargs or {})),
            Side.from_connection_string(secondary, **(secondary_kwargs or {})),
            options,
        )

    @classmethod
    def from_credential(
        cls,
        primary_host: str,
        secondary_host: str,
        credential: Any,
        *,
        primary_kwargs: Mapping[str, Any] | None = None,
        secondary_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Pair two namespaces by their hosts and a token credential of azure-identity's `aio`."""
        return cls._of(
            Side.from_credential(primary_host, credential, **(primary_kwargs or {})),
            Side.from_credential(secondary_host, credential, **(secondary_kwargs or {})),
            options,
        )

    @classmethod
    def _of(cls, primary: Side, secondary: Side, options: Mapping[str, Any]) -> Self:
        chosen = SendAvailabilityPairedNamespaceOptions(None, secondary.new_client(aio=True), **options)
        client = cls.__new__(cls)
        client._set_up(primary, cast(ServiceBusClient, primary.new_client(aio=True)), secondary, chosen)
        return client

    def __repr__(self) -> str:
        return f"<PairedServiceBusClient {self._hub!r}>"

    async def __aenter__(self) -> Self:
        await self.pair()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __getattr__(self, name: str) -> Any:
        """What the SDK's client has and this one does not say otherwise about is the primary's."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._primary, name)

    # ── pairing ──

    @property
    def options(self) -> SendAvailabilityPairedNamespaceOptions:
        return self._hub.options

    async def pair(self) -> None:
        """Find or create the backlog queues. Nothing is sent before; `async with`, or the first send, does it."""
        hub = self._hub
        async with self._pairing:
            hub.check()
            if hub.is_paired:
                return
            late = False
            if hub.pair.enabled:
                await asyncio.to_thread(hub.open_spool)
                try:
                    if not hub.pair.rotation.queues:  # a forked process has them
                        hub.paired_with(await self._provision())
                except Exception as error:
                    if not hub.pairing_failed(error):
                        raise
                    late = True
            hub.is_paired = True
            if (late or hub.needs_upkeep) and not hub.is_closed:
                self._start_upkeep(late=late)

    async def _pair_within(self, timeout_s: float) -> float:
        """For a call that has a time-out: what is left of it. Pairing goes on when it is over."""
        ends = time.monotonic() + timeout_s
        pairing = asyncio.create_task(self.pair())
        self._pairings.add(pairing)
        pairing.add_done_callback(self._paired)
        await asyncio.wait([pairing], timeout=timeout_s)
        if not pairing.done():
            raise self._hub.pairing_takes_long(timeout_s)
        pairing.result()
        return max(ends - time.monotonic(), GRACE_S)

    def _paired(self, pairing: asyncio.Task[None]) -> None:
        self._pairings.discard(pairing)
        if not pairing.cancelled():
            pairing.exception()  # when its caller has given up, nobody else asks

    async def _provision(self) -> list[str]:
        hub = self._hub
        hub.pairing_begins()
        return await provision_async(hub.secondary, hub.primary_name, hub.options)

    async def clear_pairing(self) -> None:
        """Forget all state and timers, and be a plain client of the primary from now on."""
        self._hub.clear_pairing()
        await self._stop_upkeep()

    def force_failover(self, entity: str) -> None:
        """Send this entity's messages to the backlog until `force_healthy` is called."""
        self._hub.force(entity, over=True)

    def force_healthy(self, entity: str) -> None:
        """Send this entity's messages to the primary again, whatever is known about it."""
        self._hub.force(entity, over=False)

    def states(self) -> dict[str, State]:
        """The state of every entity that this client has sent to."""
        return self._hub.states()

    @property
    def counters(self) -> Snapshot:
        return self._hub.counters.snapshot()

    async def events(self) -> AsyncIterator[Event]:
        """Every event from now on. A reader that is more than 10 000 behind loses the oldest."""
        queue: asyncio.Queue[Event] = asyncio.Queue(EVENTS_MAX)

        def listen(event: Event) -> None:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)

        self._hub.listeners.append(listen)
        try:
            while True:
                event = await queue.get()
                yield event
                if isinstance(event, Closed):
                    return
        finally:
            self._hub.listeners.remove(listen)

    def fault(self, side: SideName = "primary") -> None:
        """Declare one side unusable. Where the syphon runs, the other follows."""
        self._hub.fault(side, "fault() was called")

    async def close(self) -> None:
        """Stop pings and pumps (they get 5 seconds to finish what they hold) and close both sides."""
        hub = self._hub
        if hub.is_closed:
            return
        hub.is_closed = True
        self._closing.set()
        for pairing in list(self._pairings):
            pairing.cancel()
        await self._stop_upkeep()
        senders = list(self._senders)
        for sender in senders:
            await sender.close()
        deadline = time.monotonic() + PUMP_GRACE_S
        for sender in senders:
            await sender._settle(deadline)
        await burials()
        sides: tuple[tuple[ServiceBusClient, SideName], ...]
        sides = ((self._primary, "primary"), (self._secondary, "secondary"))
        for client, side in sides:
            await client.close()
            hub.lives.ended(side, Life.CLOSED, "close() was called")
        hub.tell(Closed(hub.primary.name, hub.secondary.name))
        await asyncio.to_thread(hub.release)

    # ── senders and receivers ──

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> PairedSender:
        return self._sender(queue_name, topic=False, **kwargs)

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> PairedSender:
        return self._sender(topic_name, topic=True, **kwargs)

    def _sender(self, path: str, **kwargs: Any) -> PairedSender:
        self._hub.check()
        sender = PairedSender(self, path, **kwargs)
        self._senders.add(sender)
        return sender

    def get_queue_receiver(self, queue_name: str, **kwargs: Any) -> ServiceBusReceiver:
        """The primary's. Pings are not handed out."""
        self._hub.check()
        receiver = self._primary.get_queue_receiver(queue_name, **kwargs)
        return sdk.skip_pings(receiver, self._hub.receiver_meter(queue_name))

    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **kwargs: Any) -> ServiceBusReceiver:
        """The primary's. Pings are not handed out."""
        self._hub.check()
        receiver = self._primary.get_subscription_receiver(topic_name, subscription_name, **kwargs)
        return sdk.skip_pings(receiver, self._hub.receiver_meter(f"{topic_name}/Subscriptions/{subscription_name}"))

    # ── upkeep ──

    def _wake(self) -> None:
        if self._upkeep is not None:
            self._upkeep.wake()
        elif not self._hub.is_closed and self._hub.pair.enabled and self._hub.pair.next_due() is not None:
            self._start_upkeep(late=False)

    def _start_upkeep(self, *, late: bool) -> None:
        if self._upkeep is None:
            upkeep = Upkeep(self._hub, (self._primary, self._secondary), self._provision if late else None)
            self._upkeep = upkeep
            self._upkeep_task = asyncio.get_running_loop().create_task(upkeep.run())

    async def _stop_upkeep(self) -> None:
        upkeep, task, self._upkeep, self._upkeep_task = self._upkeep, self._upkeep_task, None, None
        if upkeep is not None and task is not None:
            upkeep.stop()
            done, _ = await asyncio.wait([task], timeout=PUMP_GRACE_S + 2.0)
            if not done:
                task.cancel()

    def _after_fork(self) -> None:
        """In the child: no socket, event loop or spool of the parent is used."""
        self._hub.after_fork(contextlib.nullcontext())
        self._pairing = asyncio.Lock()
        self._closing = asyncio.Event()
        self._upkeep = self._upkeep_task = None
        for given in (self._primary, self._secondary):
            sdk.abandon_connections(given)
        for sender in list(self._senders):
            sender._after_fork()


class PairedSender:
    """Sends to one queue or topic; a drop-in for `azure.servicebus.aio.ServiceBusSender`. Tasks may share it."""

    def __init__(self, client: PairedServiceBusClient, path: str, *, topic: bool, **kwargs: Any) -> None:
        self._client = client
        self._hub = client._hub
        self._state = SenderState(self._hub.entity(path))
        self._counts = self._hub.counters.entity(path)
        self._order = order_of(self._hub.options)
        self.client_identifier: str = kwargs.setdefault("client_identifier", f"SBSender-{uuid4()}")
        self._home = AsyncLink(client._primary, path, topic=topic, **kwargs)
        self._away: AsyncLink | None = None
        self._closed = False
        self.entity_name = path
        self.fully_qualified_namespace: str = client._primary.fully_qualified_namespace

    def __repr__(self) -> str:
        return self._hub.sender_repr(self._state)

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed = True
        for link in (self._home, self._away):
            if link is not None:
                link.retire()

    async def _settle(self, deadline: float) -> None:
        """Let sends that are under way end before the SDK's client closes its connections under them."""
        for link in (self._home, self._away):
            if link is not None and await link.enter(deadline - time.monotonic()):
                link.leave()

    def _check(self) -> None:
        self._hub.check()
        if self._closed:
            raise ClientClosed(f"the sender of {self.entity_name}")

    # ── sending ──

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        """Return when the primary, a backlog queue or the spool has stored it; raise when none did."""
        hub, entity = self._hub, self._state.entity
        timeout_s = SEND_TIMEOUT_S if timeout is None else timeout_of(timeout)
        if self._closed or hub.is_closed or hub.lives.faulted:
            self._check()
        going = outgoing(message)
        if going is None:
            return
        if not hub.is_paired:
            timeout_s = await self._client._pair_within(timeout_s)
        began = time.monotonic()
        tried: Reply | None = None
        if hub.needs_no_plan(entity):
            tried = await self._to_primary(first_timeout_s(hub.pair, timeout_s), going, began + timeout_s)
            if tried is None:
                hub.sent_home(entity, self._counts, going)
                if self._away is not None:
                    self._leave_backlog()
                return
        await self._send_by_plan(going, timeout_s, began, tried)

    async def _send_by_plan(self, going: Outgoing, timeout_s: float, began: float, tried: Reply | None) -> None:
        hub, entity, deadline = self._hub, self._state.entity, began + timeout_s
        unknown = tried is not None and tried.failure is not None and tried.failure.outcome_unknown
        plan = hub.plan(self._state, timeout_s, began, tried)
        reply: Reply | None = None
        try:
            while not isinstance(step := hub.advance(plan, reply), Receipt):
                reply = await self._perform(step, going, deadline)
                unknown = unknown or (reply.failure is not None and reply.failure.outcome_unknown)
        except Unsent as unsent:
            raise hub.error(unsent, entity, going) from unsent.failure.error
        except ClientClosed as closed:
            raise hub.closed_meanwhile(closed, entity, going, outcome_unknown=unknown) from None
        finally:
            plan.close()
        hub.sent(entity, step, going, outcome_unknown=unknown)
        if step.where is Where.PRIMARY and self._away is not None:
            self._leave_backlog()

    async def _perform(self, command: Command, going: Outgoing, deadline: float) -> Reply:
        if type(command) is ToPrimary:
            way = self._to_primary(command.timeout_s, going, deadline, fresh=command.fresh, trial=command.trial)
            return await way or Reply(time.monotonic())
        if type(command) is ToBacklog:
            return await self._to_backlog(command, going, deadline)
        if type(command) is ToSpool:
            entries = going.entries(self.entity_name, self._hub.first_attempt_ms(command.first_attempt_at), self._order)
            failure = await asyncio.to_thread(self._hub.to_spool, entries)
            return Reply(time.monotonic(), failure)
        assert type(command) is Pause
        try:
            async with asyncio.timeout(command.seconds):
                await self._client._closing.wait()
            self._check()
        except TimeoutError:
            pass
        return Reply(time.monotonic())

    async def _to_primary(
        self, timeout_s: float, going: Outgoing, deadline: float, *, fresh: bool = False, trial: bool = False
    ) -> Reply | None:
        """One attempt; None when it was accepted."""
        link, hub, entity = self._home, self._hub, self._state.entity
        await self._stand_in_line(link, deadline, going)
        try:
            if entity.state is not HEALTHY and not trial and not hub.goes_home(entity):
                return Reply(time.monotonic(), rerouted=True)
            if fresh:
                link.drop()
            left_s = deadline - time.monotonic()  # after the line; the backlog needs its part of it
            failure = await link.send(going.given, min(timeout_s, first_timeout_s(hub.pair, left_s)))
        finally:
            link.leave()
        if hub.ledger is not None:
            hub.meter_send("primary", self.entity_name, going, failure, "application")
        if failure is not None:
            return Reply(time.monotonic(), failure)
        if not going.is_small:
            hub.watch_size(entity, going, link.limits[0])
        return None

    async def _to_backlog(self, command: ToBacklog, going: Outgoing, deadline: float) -> Reply:
        hub = self._hub
        link = self._backlog_link(command.queue)
        await self._stand_in_line(link, deadline, going)
        try:
            if not hub.pair.rotation.has(command.queue):
                return Reply(time.monotonic(), rerouted=True)
            if command.fresh:
                link.drop()
            until = min(deadline, time.monotonic() + command.timeout_s)
            with telemetry.span("divert", {telemetry.DESTINATION: self.entity_name}):
                failure = await self._send_wrapped(link, command, going, until)
        finally:
            link.leave()
            hub.stored_away(self._state.entity, going, outcome_unknown=command.first_attempt_at is not None)
        return Reply(time.monotonic(), failure)

    async def _send_wrapped(self, link: AsyncLink, command: ToBacklog, going: Outgoing, until: float) -> Failure | None:
        hub = self._hub
        first_ms = hub.first_attempt_ms(command.first_attempt_at)
        messages = going.wrapped(self.entity_name, first_ms, self._order)
        try:
            parts = batches(messages, link.limits[1] or DEFAULT_LIMIT, aio=True)
        except sdk.ERRORS as error:
            return sdk.failure_of(error, sending=False)
        for what, count in parts:
            failure = await link.send(what, max(until - time.monotonic(), 0.001))
            hub.meter_send("secondary", command.queue, Outgoing(what, messages[:count]), failure, "failover")
            if failure is not None:
                return failure
            going.stored(count, command.queue)
            del messages[:count]
        return None

    def _backlog_link(self, queue: str) -> AsyncLink:
        link = self._away
        if link is None or link.path != queue:
            self._leave_backlog()
            link = self._away = AsyncLink(self._client._secondary, queue, topic=False)
        return link

    def _leave_backlog(self) -> None:
        """Back home, or to another queue: this connection to the secondary is not needed any more."""
        link, self._away = self._away, None
        if link is not None:
            link.retire()

    async def _stand_in_line(self, link: AsyncLink, deadline: float, going: Outgoing | None = None) -> None:
        left_s = deadline - time.monotonic()
        if not await link.enter(left_s):
            raise self._hub.line_is_long(self.entity_name, left_s, going)
        if self._closed:
            link.leave()
            self._check()

    # ── the rest of the SDK's sender ──

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Also while the primary is away: then with the limit that its link had, or the Standard tier's."""
        self._check()
        if not self._hub.is_paired:
            await self._client.pair()
        if not self._home.limits[1] and self._hub.goes_home(self._state.entity):
            timeout_s = self._hub.options.attempt_timeout
            await self._use_home(lambda sender, left_s: sender.create_message_batch(), timeout_s)
        return new_batch(self._home.limits[1], max_size_in_bytes, aio=True)

    async def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> list[int]:
        """On the primary only: a backlog queue has no numbers to cancel by."""
        timeout_s = await self._check_home(timeout)
        going = outgoing(messages)
        if going is None:
            return []
        return await self._manage(  # type: ignore[no-any-return]
            lambda sender, left_s: sender.schedule_messages(going.given, schedule_time_utc, timeout=left_s), timeout_s
        )

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        timeout_s = await self._check_home(timeout)
        await self._manage(
            lambda sender, left_s: sender.cancel_scheduled_messages(sequence_numbers, timeout=left_s), timeout_s
        )

    async def _check_home(self, timeout: float | None) -> float:
        """What is left of the time-out."""
        timeout_s = timeout_of(timeout)
        self._check()
        if not self._hub.is_paired:
            timeout_s = await self._client._pair_within(timeout_s)
        if not self._hub.goes_home(self._state.entity):
            raise ScheduleWhileFailedOver(self.entity_name)
        return timeout_s

    async def _manage(self, use: Any, timeout_s: float) -> Any:
        """A request to the primary, repeated once on a fresh connection; a failure counts as a send's does."""
        deadline = time.monotonic() + timeout_s
        hub, entity = self._hub, self._state.entity
        for fresh in (False, True):
            left_s = deadline - time.monotonic()
            result, failure = await self._use_home(use, min(left_s, hub.options.attempt_timeout), fresh=fresh)
            if failure is None:
                hub.managed(entity, None)
                return result
            if failure.kind is not Kind.COMMUNICATION or deadline - time.monotonic() <= 0:
                break
        assert failure is not None
        if hub.managed(entity, failure) is Reaction.COUNT and not hub.goes_home(entity):
            raise ScheduleWhileFailedOver(self.entity_name) from failure.error
        assert failure.error is not None
        raise failure.error

    async def _use_home(self, use: Any, timeout_s: float, *, fresh: bool = False) -> tuple[Any, Failure | None]:
        deadline = time.monotonic() + timeout_s
        await self._stand_in_line(self._home, deadline)
        try:
            if fresh:
                self._home.drop()
            return await self._home.call(use, max(deadline - time.monotonic(), 0.001))
        finally:
            self._home.leave()

    def _after_fork(self) -> None:
        self._home.abandon()
        self._away = None
