"""The parts of every client and sender that need no event loop: the same for asyncio and for threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from uuid import uuid4

from pairbus.client.engine import Engine
from pairbus.client.errors import ClientClosed
from pairbus.client.life import AioLife, SyncLife, begin
from pairbus.client.outgoing import Outgoing, PairedMessageBatch, new_batch, outgoing_of, scheduled
from pairbus.client.receiving.face import ReceiverFace
from pairbus.client.receiving.options import ReceiverOptions, of_queue, of_subscription
from pairbus.client.results import Origin
from pairbus.client.sides import Side
from pairbus.client.state import PairState
from pairbus.pairing.failover import State
from pairbus.pairing.options import SEND_TIMEOUT_S, SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.side_states import PairSide
from pairbus.sdk import tracing
from pairbus.sdk.clients import call_when_closed
from pairbus.telemetry.counters import Snapshot

LONGEST_S = 1e9  # stands for endless, which clocks do not take

SenderT = TypeVar("SenderT", bound="SenderFace")
ReceiverT = TypeVar("ReceiverT", bound="ReceiverFace")


class Job(NamedTuple):
    """One call of a sender: work for the engine, its time-out, its messages and its span."""

    work: Callable[[Engine], Coroutine[Any, Any, Any]]
    timeout_s: float | None = None
    outgoing: Outgoing | None = None
    span: AbstractContextManager[None] = tracing.NO_SPAN


class ClientFace(Generic[SenderT, ReceiverT]):
    """States, senders and receivers of a client. `AIO` tells which flavour of the SDK it has.

    `client/paired.py` adds what a pair has, `client/single.py` the constructors of a client of one namespace.
    """

    AIO: ClassVar[bool]
    _life: Any

    def _set_up(self, primary: Side, secondary: Side | None, options: SendAvailabilityPairedNamespaceOptions) -> None:
        self._primary: Any = primary.client
        self._state = PairState(primary, secondary, options)
        self._processors: set[Any] = set()
        "Processors that were started and not stopped."
        me = weakref.ref(self)  # the SDK's clients live as long as the engine, which must not hold a forgotten client
        for name, side in self._state.sides.items():
            side.reads_environment = not self.AIO
            call_when_closed(side.client, partial(_closed_under_us, me, name))
        begin(self, self._new_life())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state!r}>"

    def __getattr__(self, name: str) -> Any:
        """Forward attributes that are not defined here to the primary's client."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._primary, name)

    @property
    def counters(self) -> Snapshot:
        return self._state.counters.snapshot()

    def states(self) -> dict[str, State]:
        """Return the state of every entity that this client has sent to."""
        return self._state.states()

    # ── senders and receivers ──

    def get_queue_sender(self, queue_name: str, *, client_identifier: str | None = None, **kwargs: Any) -> SenderT:
        """Return a sender. Other keywords of the SDK are ignored: they set its retries, which Pairbus does itself."""
        self._state.check()
        return self._new_sender(queue_name, client_identifier)

    def get_topic_sender(self, topic_name: str, *, client_identifier: str | None = None, **kwargs: Any) -> SenderT:
        """Return a sender. Other keywords of the SDK are ignored: they set its retries, which Pairbus does itself."""
        self._state.check()
        return self._new_sender(topic_name, client_identifier)

    def get_queue_receiver(self, queue_name: str, **kwargs: Any) -> ReceiverT:
        """Return a receiver of the primary, with the keywords of the SDK; those of its retries are ignored."""
        self._state.check()
        return self._new_receiver(of_queue(queue_name, only_entity=self._only_entity, **kwargs))

    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **kwargs: Any) -> ReceiverT:
        """Return a receiver of the primary, with the keywords of the SDK; those of its retries are ignored."""
        self._state.check()
        return self._new_receiver(
            of_subscription(topic_name, subscription_name, only_entity=self._only_entity, **kwargs)
        )

    @property
    def _only_entity(self) -> str | None:
        """The entity that the primary's connection string names."""
        return self._state.primary.endpoint.entity_path

    # ── methods of each flavour ──

    def _new_life(self) -> AioLife | SyncLife:
        raise NotImplementedError

    def _new_sender(self, path: str, client_identifier: str | None) -> SenderT:
        raise NotImplementedError

    def _new_receiver(self, options: ReceiverOptions) -> ReceiverT:
        raise NotImplementedError

    def _fault(self, side: PairSide, reason: str) -> None:
        raise NotImplementedError

    def _after_fork(self) -> None:
        """Forget the parent's things in a forked child: sockets, event loop, spool."""
        self._life.after_fork()
        self._state.after_fork()


class SenderFace:
    """The parts of a sender that need no event loop: a call becomes a job (None: there is nothing to do)."""

    def __init__(self, client: ClientFace[Any, Any], path: str, client_identifier: str | None) -> None:
        self._state = client._state
        self._origin = Origin(self._state, path, client_identifier)
        self._closed = False
        if client_identifier is not None:
            self._state.link_users.add(path, client_identifier)
        self.client_identifier: str = client_identifier or f"SBSender-{uuid4()}"
        self.entity_name = path
        self.fully_qualified_namespace: str = client._primary.fully_qualified_namespace

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.sender_repr(self._origin.sender)}>"

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


def _closed_under_us(face: weakref.ref[ClientFace[Any, Any]], side: PairSide) -> None:
    """Fault the side of an SDK client that the application closed."""
    client = face()
    if client is not None and not client._state.is_closed:
        client._fault(side, f"the client of the {side} was closed by somebody else")
