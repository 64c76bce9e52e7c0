"""`PairedServiceBusClient` for asyncio: a drop-in for `azure.servicebus.aio.ServiceBusClient`."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from pairbus import sdk
from pairbus.aio_links import GRACE_S, burials
from pairbus.aio_sender import PairedSender
from pairbus.counters import Snapshot
from pairbus.forks import clients
from pairbus.hub import Hub
from pairbus.pairing.events import Closed, Event
from pairbus.pairing.failover import State
from pairbus.pairing.life import Life
from pairbus.pairing.life import Side as SideName
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions, factory_of
from pairbus.provisioning import provision_async
from pairbus.sides import Side
from pairbus.upkeep import PUMP_GRACE_S, Upkeep

__all__ = ["PairedSender", "PairedServiceBusClient"]

EVENTS_MAX = 10_000  # that an iterator may be behind; older ones are dropped then


class PairedServiceBusClient:
    """Sends to the primary, or to backlog queues of the secondary while the primary is away; receives from the primary.

    Belongs to one event loop, and to the next one when that has ended; safe to share between its tasks. Made by
    `from_connection_strings` or `from_credential`, everything that it needs is made for it; the constructor takes
    clients of the SDK, which it then owns and closes.
    """

    def __init__(self, primary: ServiceBusClient, options: SendAvailabilityPairedNamespaceOptions) -> None:
        factory, admin = factory_of(options), options.secondary_namespace_manager
        secondary = Side.from_client(factory, "options.messaging_factory", aio=True, admin=admin)
        self._set_up(Side.from_client(primary, "primary", aio=True), primary, secondary, options)

    def _set_up(
        self, primary: Side, client: ServiceBusClient, secondary: Side, options: SendAvailabilityPairedNamespaceOptions
    ) -> None:
        self._primary = client
        self._secondary: ServiceBusClient = options.messaging_factory
        self._hub = Hub(primary, secondary, options)
        self._hub.wake = self._wake
        self._pairing = asyncio.Lock()
        self._pairings: set[asyncio.Task[None]] = set()
        self._provisioning: asyncio.Task[list[str]] | None = None
        self._closing = asyncio.Event()
        self._upkeep: Upkeep | None = None
        self._upkeep_task: asyncio.Task[None] | None = None
        self._senders: weakref.WeakSet[PairedSender] = weakref.WeakSet()
        sdk.when_closed(client, partial(self._hub.closed_under_us, "primary"))
        sdk.when_closed(self._secondary, partial(self._hub.closed_under_us, "secondary"))
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
        self._enter_loop()
        async with self._pairing:
            hub.check()
            if hub.is_paired:
                return
            late = False
            if hub.pair.enabled:
                await asyncio.get_running_loop().run_in_executor(hub.disk, hub.open_spool)
                try:
                    hub.check()
                    if not hub.pair.rotation.queues:  # a forked process has them
                        hub.paired_with(await self._provision_unless_closed())
                except Exception as error:
                    hub.check()
                    if not hub.pairing_failed(error):
                        raise
                    late = True
            hub.pairing_completed()
            if (late or hub.needs_upkeep) and not hub.is_closed:
                self._start_upkeep(late=late)
        hub.deliver()  # whoever hears of it may call this client

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
        return await provision_async(hub.secondary, hub.primary_name, hub.options, hub.meter_pairing)

    async def _provision_unless_closed(self) -> list[str]:
        """ClientClosed when `close` breaks it off; being cancelled is for those whom somebody cancels."""
        self._provisioning = asyncio.create_task(self._provision())
        try:
            queues = await self._provisioning
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                self._hub.check()
            raise
        finally:
            self._provisioning = None
        self._hub.check()
        return queues

    async def clear_pairing(self) -> None:
        """Forget all state and timers, and be a plain client of the primary from now on. The spool is given back."""
        self._enter_loop()
        self._hub.clear_pairing()
        await self._stop_upkeep()
        await asyncio.get_running_loop().run_in_executor(self._hub.disk, self._hub.close_spool)

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
        if self._hub.is_closed:
            return
        self._enter_loop()
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
            if listen in self._hub.listeners:  # not any more when its event loop has ended
                self._hub.listeners.remove(listen)

    def fault(self, side: SideName = "primary") -> None:
        """Declare one side unusable. Where the syphon runs, the other follows."""
        self._hub.fault(side, "fault() was called")

    async def close(self) -> None:
        """Stop pings and pumps (they get 5 seconds to finish what they hold) and close both sides."""
        hub = self._hub
        if hub.is_closed:
            return
        self._enter_loop()
        hub.closes()
        self._closing.set()
        if self._provisioning is not None:
            self._provisioning.cancel()
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
        try:
            await asyncio.to_thread(hub.release)
        except RuntimeError:  # the interpreter is ending, and starts no thread any more
            hub.release()

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
        elif self._hub.is_paired and self._hub.clocks_run and not self._hub.is_closed:
            self._start_upkeep(late=False)

    def _start_upkeep(self, *, late: bool) -> None:
        if self._upkeep is None:
            upkeep = Upkeep(self._hub, self._provision if late else None)
            self._upkeep = upkeep
            self._upkeep_task = asyncio.get_running_loop().create_task(upkeep.run())

    async def _stop_upkeep(self) -> None:
        upkeep, task, self._upkeep, self._upkeep_task = self._upkeep, self._upkeep_task, None, None
        if upkeep is not None and task is not None:
            upkeep.stop()
            done, _ = await asyncio.wait([task], timeout=PUMP_GRACE_S + 2.0)
            if not done:
                task.cancel()

    def _enter_loop(self) -> None:
        """Before anything is awaited. Whoever calls `asyncio.run` once more has another loop: nothing of the one that
        is closed can be used there, and what ran in it begins again."""
        hub, loop = self._hub, asyncio.get_running_loop()
        last = hub.loop
        if last is not None and last is not loop:
            if not last.is_closed():
                raise RuntimeError("This client belongs to another event loop, which is not closed: make one for each.")
            self._forget_loop()
            hub.after_loop()
        hub.loop = loop
        if last not in (None, loop) and hub.is_paired and not hub.is_closed and not hub.lives.faulted:
            is_late = hub.pair.enabled and not hub.pair.rotation.queues
            if is_late or hub.needs_upkeep:
                self._start_upkeep(late=is_late)

    def _forget_loop(self) -> None:
        for sender in list(self._senders):
            sender._abandon()
        self._pairing = asyncio.Lock()
        self._closing = asyncio.Event()
        if self._hub.is_closed:
            self._closing.set()
        self._provisioning = self._upkeep = self._upkeep_task = None

    def _after_fork(self) -> None:
        """In the child: no socket, event loop or spool of the parent is used."""
        for given in (self._primary, self._secondary):
            sdk.abandon_connections(given)
        _parents.extend((self._provisioning, self._upkeep, self._upkeep_task))
        self._forget_loop()
        self._hub.after_fork()


_parents: list[object] = []
"In a forked process: never collected, which would carry out what a task does at its end, on the parent's sockets."
