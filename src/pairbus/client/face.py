"""The parts of a paired client and a paired sender that need no event loop: the same for asyncio and for threads."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar, Self
from uuid import uuid4

from pairbus import sdk
from pairbus.client.errors import ClientClosed
from pairbus.client.outgoing import Outgoing, outgoing
from pairbus.client.results import Origin
from pairbus.client.sides import Side
from pairbus.client.state import PairState
from pairbus.pairing.failover import State
from pairbus.pairing.life import Side as SideName
from pairbus.pairing.options import SEND_TIMEOUT_S, SendAvailabilityPairedNamespaceOptions, factory_of
from pairbus.process.forks import call_in_forked_child
from pairbus.telemetry.counters import Snapshot

logger = logging.getLogger("pairbus")

LONGEST_S = 1e9  # clocks take no endless time


class PairedClientFace:
    """Construction, looking and receivers of a paired client. `AIO` says which flavour of the SDK it holds."""

    AIO: ClassVar[bool]

    def __init__(self, primary: Any, options: SendAvailabilityPairedNamespaceOptions) -> None:
        factory, admin = factory_of(options), options.secondary_namespace_manager
        secondary = Side.from_client(factory, "options.messaging_factory", aio=self.AIO, admin=admin)
        self._set_up(Side.from_client(primary, "primary", aio=self.AIO), primary, secondary, options)

    def _set_up(
        self, primary: Side, client: Any, secondary: Side, options: SendAvailabilityPairedNamespaceOptions
    ) -> None:
        primary.reads_environment = secondary.reads_environment = not self.AIO
        self._primary = client
        self._secondary = options.messaging_factory
        self._state = PairState(primary, secondary, options)
        self._receivers: weakref.WeakSet[Any] = weakref.WeakSet()
        sdk.when_closed(client, partial(self._closed_under_us, "primary"))
        sdk.when_closed(self._secondary, partial(self._closed_under_us, "secondary"))
        _clients.add(self)

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
        chosen = SendAvailabilityPairedNamespaceOptions(None, secondary.new_client(aio=cls.AIO), **options)
        client = cls.__new__(cls)
        client._set_up(primary, primary.new_client(aio=cls.AIO), secondary, chosen)
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

    # ── receivers ──

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
        meter, guarded = self._state.meters.receiver(entity), None if self.AIO else sdk.guarded
        receiver = sdk.skip_pings(receiver, meter, guarded, self._state.check_receiver)
        self._receivers.add(receiver)
        return receiver

    def _closed_under_us(self, side: SideName) -> None:
        """Fault the side of an SDK client that somebody else closed."""
        raise NotImplementedError

    def _after_fork(self) -> None:
        """Forget in the child what is the parent's: sockets, event loop, spool."""
        for given in (self._primary, self._secondary):
            sdk.abandon_connections(given)
        self._state.after_fork()


class PairedSenderFace:
    """The parts of a paired sender that need no event loop."""

    def __init__(self, client: PairedClientFace, path: str, client_identifier: str | None) -> None:
        self._state = client._state
        self._origin = Origin(self._state, path, client_identifier)
        self._closed = False
        self.client_identifier: str = client_identifier or f"SBSender-{uuid4()}"
        self.entity_name = path
        self.fully_qualified_namespace: str = client._primary.fully_qualified_namespace

    def __repr__(self) -> str:
        return self._state.sender_repr(self._origin.sender)

    def _check(self) -> None:
        if self._closed or self._state.is_closed or self._state.lives.faulted:
            self._state.check()
            if self._closed:
                raise ClientClosed(f"the sender of {self.entity_name}")

    def _traced(self) -> sdk.Traced | None:
        return sdk.traced(self.fully_qualified_namespace, self.entity_name)

    def _span(self, name: str, going: Outgoing) -> AbstractContextManager[None]:
        return sdk.span(self.fully_qualified_namespace, self.entity_name, name, going.links)

    def _outgoing(self, given: Any) -> Outgoing | None:
        return outgoing(given, self._traced())


def sender_keywords(given: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords that matter of those that the SDK takes for a sender; retries are ours."""
    return {name: value for name, value in given.items() if name == "client_identifier"}


def timeout_of(timeout: float | None) -> float:
    if timeout is None:
        return SEND_TIMEOUT_S
    if timeout <= 0:
        raise ValueError("The timeout must be greater than 0.")  # the SDK's own words
    return min(timeout, LONGEST_S)


_clients: weakref.WeakSet[PairedClientFace] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        try:
            client._after_fork()
        except Exception:  # whatever is wrong with one, the others must not speak on the parent's sockets
            logger.exception("after a fork %r cannot be used", client)


call_in_forked_child(_after_fork)
