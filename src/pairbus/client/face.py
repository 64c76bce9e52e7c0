"""The parts of a paired client and a paired sender that need no event loop: the same for asyncio and for threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar
from uuid import uuid4

from pairbus.client.engine import Engine
from pairbus.client.errors import ClientClosed
from pairbus.client.life import AioLife, SyncLife, begin
from pairbus.client.outgoing import Outgoing, PairedMessageBatch, new_batch, outgoing_of, scheduled
from pairbus.client.results import Origin
from pairbus.client.sides import Side
from pairbus.client.state import PairState
from pairbus.pairing.failover import State
from pairbus.pairing.options import SEND_TIMEOUT_S, SendAvailabilityPairedNamespaceOptions, check_names, factory_of
from pairbus.pairing.side_states import PairSide
from pairbus.sdk import tracing
from pairbus.sdk.clients import abandon_connections, call_when_closed
from pairbus.sdk.receivers import skip_pings
from pairbus.telemetry.counters import Snapshot

LONGEST_S = 1e9  # stands for endless, which clocks do not take

SenderT = TypeVar("SenderT", bound="PairedSenderFace")


class Job(NamedTuple):
    """One call of a sender: work for the engine, its time-out, its messages and its span."""

    work: Callable[[Engine], Coroutine[Any, Any, Any]]
    timeout_s: float | None = None
    outgoing: Outgoing | None = None
    span: AbstractContextManager[None] = tracing.NO_SPAN


class PairedClientFace(Generic[SenderT]):
    """Construction, states, senders and receivers of a client. `AIO` tells which flavour of the SDK it has."""

    AIO: ClassVar[bool]
    _life: Any

    def __init__(self, primary: Any, options: SendAvailabilityPairedNamespaceOptions) -> None:
        factory, admin = factory_of(options), options.secondary_namespace_manager
        secondary = Side.from_client(factory, "options.messaging_factory", aio=self.AIO, admin=admin)
        self._set_up(Side.from_client(primary, "primary", aio=self.AIO), secondary, options)

    def _set_up(self, primary: Side, secondary: Side, options: SendAvailabilityPairedNamespaceOptions) -> None:
        primary.reads_environment = secondary.reads_environment = not self.AIO
        self._primary: Any = primary.client
        self._secondary: Any = secondary.client
        self._state = PairState(primary, secondary, options)
        self._receivers: weakref.WeakSet[Any] = weakref.WeakSet()
        me = weakref.ref(self)  # the SDK's clients live as long as the engine, which must not hold a forgotten client
        call_when_closed(self._primary, partial(_closed_under_us, me, "primary"))
        call_when_closed(self._secondary, partial(_closed_under_us, me, "secondary"))
        begin(self, self._new_life())

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
            Side.from_connection_string(primary, aio=cls.AIO, **(primary_kwargs or {})),
            Side.from_connection_string(secondary, aio=cls.AIO, **(secondary_kwargs or {})),
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
            Side.from_credential(primary_host, credential, aio=cls.AIO, **(primary_kwargs or {})),
            Side.from_credential(secondary_host, credential, aio=cls.AIO, **(secondary_kwargs or {})),
            options,
        )

    @classmethod
    def _of(cls, primary: Side, secondary: Side, options: Mapping[str, Any]) -> Self:
        check_names(options)
        client = cls.__new__(cls)
        client._set_up(primary, secondary, SendAvailabilityPairedNamespaceOptions(None, secondary.client, **options))
        return client

    def __repr__(self) -> str:
        return f"<PairedServiceBusClient {self._state!r}>"

    def __getattr__(self, name: str) -> Any:
        """Forward attributes that are not defined here to the primary's client."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._primary, name)

    @property
    def options(self) -> SendAvailabilityPairedNamespaceOptions:
        return self._state.options

    @property
    def counters(self) -> Snapshot:
        return self._state.counters.snapshot()

    def states(self) -> dict[str, State]:
        """Return the state of every entity that this client has sent to."""
        return self._state.states()

    # ── senders and receivers ──

    def get_queue_sender(self, queue_name: str, *, client_identifier: str | None = None, **kwargs: Any) -> SenderT:
        """Return a sender. Other keywords of the SDK are ignored: they set its retries, which a pair does itself."""
        self._state.check()
        return self._new_sender(queue_name, client_identifier)

    def get_topic_sender(self, topic_name: str, *, client_identifier: str | None = None, **kwargs: Any) -> SenderT:
        """Return a sender. Other keywords of the SDK are ignored: they set its retries, which a pair does itself."""
        self._state.check()
        return self._new_sender(topic_name, client_identifier)

    def get_queue_receiver(self, queue_name: str, **kwargs: Any) -> Any:
        """Return a receiver of the primary. Pings are not handed out."""
        self._state.check()
        return self._received(self._primary.get_queue_receiver(queue_name, **kwargs), queue_name)

    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **kwargs: Any) -> Any:
        """Return a receiver of the primary. Pings are not handed out."""
        self._state.check()
        receiver = self._primary.get_subscription_receiver(topic_name, subscription_name, **kwargs)
        return self._received(receiver, f"{topic_name}/Subscriptions/{subscription_name}")

    def _received(self, receiver: Any, entity: str) -> Any:
        receiver = skip_pings(receiver, self._state.meters.receiver(entity), self._check_receiver)
        self._receivers.add(receiver)
        return receiver

    def _check_receiver(self) -> None:
        """Raise when receivers must end. A method of the client, so that its receivers keep the client alive."""
        self._state.check_receiver()

    # ── commands of the application ──

    def force_failover(self, entity: str) -> None:
        """Send this entity's messages to the backlog until `force_healthy` is called."""
        self._force(entity, over=True)

    def force_healthy(self, entity: str) -> None:
        """Send this entity's messages to the primary again, whatever is known about it."""
        self._force(entity, over=False)

    def fault(self, side: PairSide = "primary") -> None:
        """Declare one side unusable. Where the syphon runs, the other side is faulted too, a little later."""
        self._fault(side, "fault() was called")

    # ── methods of each flavour ──

    def _new_life(self) -> AioLife | SyncLife:
        raise NotImplementedError

    def _new_sender(self, path: str, client_identifier: str | None) -> SenderT:
        raise NotImplementedError

    def _force(self, entity: str, *, over: bool) -> None:
        raise NotImplementedError

    def _fault(self, side: PairSide, reason: str) -> None:
        raise NotImplementedError

    def _after_fork(self) -> None:
        """Forget the parent's things in a forked child: sockets, event loop, spool."""
        for client in (self._primary, self._secondary):
            abandon_connections(client)
        self._life.after_fork()
        self._state.after_fork()


class PairedSenderFace:
    """The parts of a paired sender that need no event loop: a call becomes a job (None: there is nothing to do)."""

    def __init__(self, client: PairedClientFace[Any], path: str, client_identifier: str | None) -> None:
        self._state = client._state
        self._origin = Origin(self._state, path, client_identifier)
        self._closed = False
        if client_identifier is not None:
            self._state.link_users.add(path, client_identifier)
        self.client_identifier: str = client_identifier or f"SBSender-{uuid4()}"
        self.entity_name = path
        self.fully_qualified_namespace: str = client._primary.fully_qualified_namespace

    def __repr__(self) -> str:
        return self._state.sender_repr(self._origin.sender)

    def _check(self) -> None:
        self._state.check()
        if self._closed:
            raise ClientClosed(f"the sender of {self.entity_name}")

    def _sending(self, argument: Any, timeout: float | None) -> Job | None:
        timeout_s = timeout_of(timeout)
        self._check()
        outgoing = outgoing_of(argument, self._traced())
        if outgoing is None:
            return None
        span = self._span(tracing.SEND, outgoing)
        return Job(lambda engine: engine.send(self._origin, outgoing, timeout_s), timeout_s, outgoing, span)

    def _scheduling(self, argument: Any, at: datetime, timeout: float | None) -> Job | None:
        timeout_s = timeout_of(timeout)
        self._check()
        entries, outgoing = scheduled(argument, at, self._traced())
        if outgoing is None:
            return None
        span = self._span(tracing.SCHEDULE, outgoing)
        return Job(
            lambda engine: engine.schedule(self._origin, outgoing, entries, timeout_s), timeout_s, outgoing, span
        )

    def _cancelling(self, argument: int | list[int], timeout: float | None) -> Job | None:
        timeout_s = timeout_of(timeout)
        self._check()
        numbers = [argument] if isinstance(argument, int) else list(argument)
        return Job(lambda engine: engine.cancel(self._origin, numbers, timeout_s), timeout_s) if numbers else None

    def _asking_limit(self) -> Job:
        self._check()
        return Job(lambda engine: engine.batch_limit(self._origin))

    def _new_batch(self, limit: int, wanted: int | None) -> PairedMessageBatch:
        return new_batch(limit, wanted, tracing.attributes(self.fully_qualified_namespace, self.entity_name))

    def _closing(self) -> Job | None:
        was_closed, self._closed = self._closed, True
        if was_closed or self._origin.link_name is None:
            return None
        self._state.link_users.remove(self._origin.path, self._origin.link_name)
        return None if self._state.is_closed else Job(lambda engine: engine.forget_link(self._origin))

    def _traced(self) -> tracing.Traced | None:
        if not tracing.is_on():
            return None
        return tracing.Traced(tracing.attributes(self.fully_qualified_namespace, self.entity_name))

    def _span(self, name: str, outgoing: Outgoing) -> AbstractContextManager[None]:
        if outgoing.links is None:
            return tracing.NO_SPAN
        return tracing.span(self.fully_qualified_namespace, self.entity_name, name, outgoing.links)


def timeout_of(timeout: float | None) -> float:
    if timeout is None:
        return SEND_TIMEOUT_S
    if timeout <= 0:
        raise ValueError("The timeout must be greater than 0.")  # the SDK's own words
    return min(timeout, LONGEST_S)


def _closed_under_us(face: weakref.ref[PairedClientFace[Any]], side: PairSide) -> None:
    """Fault the side of an SDK client that the application closed."""
    client = face()
    if client is not None and not client._state.is_closed:
        client._fault(side, f"the client of the {side} was closed by somebody else")
