"""`PairedServiceBusClient` for threads: a drop-in for `azure.servicebus.ServiceBusClient`."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from azure.servicebus import ServiceBusClient, ServiceBusReceiver

from pairbus import sdk
from pairbus.counters import Snapshot
from pairbus.forks import clients
from pairbus.guard import GRACE_S, Late, burials, given_up, guarded
from pairbus.hub import Hub
from pairbus.pairing.events import Closed
from pairbus.pairing.failover import State
from pairbus.pairing.life import Life
from pairbus.pairing.life import Side as SideName
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions, factory_of
from pairbus.provisioning import provision
from pairbus.sender import PairedSender
from pairbus.sides import Side
from pairbus.upkeep import PUMP_GRACE_S, Upkeep, UpkeepThread


class PairedServiceBusClient:
    """Sends to the primary, or to backlog queues of the secondary while the primary is away; receives from the primary.

    Safe to share between threads. Made by `from_connection_strings` or `from_credential`, everything that it needs is
    made for it; the constructor takes clients of the SDK, which it then owns and closes.
    """

    def __init__(self, primary: ServiceBusClient, options: SendAvailabilityPairedNamespaceOptions) -> None:
        factory, admin = factory_of(options), options.secondary_namespace_manager
        secondary = Side.from_client(factory, "options.messaging_factory", aio=False, admin=admin)
        self._set_up(Side.from_client(primary, "primary", aio=False), primary, secondary, options)

    def _set_up(
        self, primary: Side, client: ServiceBusClient, secondary: Side, options: SendAvailabilityPairedNamespaceOptions
    ) -> None:
        self._primary = client
        self._secondary: ServiceBusClient = options.messaging_factory
        self._hub = Hub(primary, secondary, options)
        self._hub.wake = self._wake
        self._pairing = threading.Lock()
        self._closing = threading.Event()
        self._upkeep: UpkeepThread | None = None
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
        """Pair two namespaces by their hosts and a token credential of azure-identity."""
        return cls._of(
            Side.from_credential(primary_host, credential, **(primary_kwargs or {})),
            Side.from_credential(secondary_host, credential, **(secondary_kwargs or {})),
            options,
        )

    @classmethod
    def _of(cls, primary: Side, secondary: Side, options: Mapping[str, Any]) -> Self:
        chosen = SendAvailabilityPairedNamespaceOptions(None, secondary.new_client(aio=False), **options)
        client = cls.__new__(cls)
        client._set_up(primary, cast(ServiceBusClient, primary.new_client(aio=False)), secondary, chosen)
        return client

    def __repr__(self) -> str:
        return f"<PairedServiceBusClient {self._hub!r}>"

    def __enter__(self) -> Self:
        self.pair()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        """What the SDK's client has and this one does not say otherwise about is the primary's."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._primary, name)

    # ── pairing ──

    @property
    def options(self) -> SendAvailabilityPairedNamespaceOptions:
        return self._hub.options

    def pair(self) -> None:
        """Find or create the backlog queues. Nothing is sent before; entering `with`, or the first send, does it."""
        hub = self._hub
        with self._pairing:
            hub.check()
            if hub.is_paired:
                return
            late = False
            if hub.pair.enabled:
                hub.open_spool()
                try:
                    hub.check()
                    if not hub.pair.rotation.queues:  # a forked process has them
                        queues = self._provision()
                        hub.check()  # whoever closes the client does not wait for this
                        hub.paired_with(queues)
                except Exception as error:
                    hub.check()
                    if not hub.pairing_failed(error):
                        raise
                    late = True
            hub.pairing_completed()
            if late or hub.needs_upkeep:
                self._start_upkeep(late=late)
        hub.deliver()  # whoever hears of it may call this client

    def _pair_within(self, timeout_s: float) -> float:
        """For a call that has a time-out: what is left of it. Pairing goes on when it is over."""
        ends = time.monotonic() + timeout_s
        try:
            given_up(self.pair, ends - GRACE_S, self._closing.is_set)
        except Late as late:
            self._hub.check()
            raise self._hub.pairing_takes_long(timeout_s) from late
        return max(ends - time.monotonic(), GRACE_S)

    def _provision(self) -> list[str]:
        hub = self._hub
        hub.pairing_begins()
        return provision(hub.secondary, hub.primary_name, hub.options, self._closing.wait, hub.meter_pairing, hub.check)

    def clear_pairing(self) -> None:
        """Forget all state and timers, and be a plain client of the primary from now on. The spool is given back."""
        self._hub.clear_pairing()
        self._stop_upkeep()
        self._hub.close_spool()

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

    def fault(self, side: SideName = "primary") -> None:
        """Declare one side unusable. Where the syphon runs, the other follows."""
        self._hub.fault(side, "fault() was called")

    def close(self) -> None:
        """Stop pings and pumps (they get 5 seconds to finish what they hold) and close both sides.

        Pairing that is under way is not waited for: its secondary may be silent. It ends after the request that it has
        made, and what it finds starts nothing.
        """
        hub = self._hub
        with hub.lock:
            if hub.is_closed:
                return
            hub.closes()
        self._closing.set()  # pairing pauses no more
        self._stop_upkeep()
        senders = list(self._senders)
        for sender in senders:
            sender.close()
        deadline = time.monotonic() + PUMP_GRACE_S
        for sender in senders:
            sender._settle(deadline)
        burials()
        sides: tuple[tuple[ServiceBusClient, SideName], ...]
        sides = ((self._primary, "primary"), (self._secondary, "secondary"))
        for client, side in sides:
            client.close()
            hub.lives.ended(side, Life.CLOSED, "close() was called")
        hub.tell(Closed(hub.primary.name, hub.secondary.name))
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
        return sdk.skip_pings(receiver, self._hub.receiver_meter(queue_name), guarded)

    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **kwargs: Any) -> ServiceBusReceiver:
        """The primary's. Pings are not handed out."""
        self._hub.check()
        receiver = self._primary.get_subscription_receiver(topic_name, subscription_name, **kwargs)
        meter = self._hub.receiver_meter(f"{topic_name}/Subscriptions/{subscription_name}")
        return sdk.skip_pings(receiver, meter, guarded)

    # ── upkeep ──

    def _wake(self) -> None:
        upkeep = self._upkeep
        if upkeep is not None:
            upkeep.wake()
        elif self._hub.is_paired and self._hub.clocks_run and not self._hub.is_closed:
            self._start_upkeep(late=False)

    def _start_upkeep(self, *, late: bool) -> None:
        hub = self._hub
        with hub.lock:
            if self._upkeep is None and not hub.is_closed:
                pair_again = (lambda: asyncio.to_thread(self._provision)) if late else None
                self._upkeep = UpkeepThread(lambda: Upkeep(hub, pair_again))

    def _stop_upkeep(self) -> None:
        upkeep, self._upkeep = self._upkeep, None
        if upkeep is not None:
            upkeep.stop(PUMP_GRACE_S)

    def _after_fork(self) -> None:
        """In the child: no socket, thread, lock or spool of the parent is used."""
        for given in (self._primary, self._secondary):
            sdk.abandon_connections(given)
        for sender in list(self._senders):
            sender._after_fork()
        self._pairing = threading.Lock()
        self._closing = threading.Event()
        self._upkeep = None
        self._hub.after_fork()
