"""The messages of one call as encoded bytes: the same form for every way of a send.

A call is encoded once, when it begins. The primary gets the message, or one batch, as the plain SDK would send it.
Backlog queues get wrapped copies, in as few batches as possible; messages that a queue stored are taken off, so that
another queue gets only the rest. The spool gets the messages one by one. The caller's objects are never changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import count
from typing import Any
from uuid import uuid4
from weakref import WeakSet

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.amqp.message import BATCH_FORMAT, encode_batch
from pairbus.backlog.envelope import RESERVED, Envelope, Wrapper, wrap
from pairbus.client.errors import ReservedPropertyError
from pairbus.host.forks import call_in_forked_child
from pairbus.ledger import billable_operations
from pairbus.sdk.encoding import BATCH_TRANSPORT, encode, encoded
from pairbus.sdk.failures import sdk_error_for
from pairbus.sdk.messages import as_messages, due_at, ensure_message_id, message_id_of, reserved_property
from pairbus.sdk.tracing import Traced, batch_links
from pairbus.spool import SpoolEntry
from pairbus.transport import Scheduled

THE_PRIMARY, THE_SPOOL = "the primary", "the spool"  # places that may have a message, in errors
ANY_PLACE: tuple[str, ...] = (THE_PRIMARY, "a backlog queue")  # where it is not known how far a call came
ONLY_PLACE: tuple[str, ...] = ("the namespace",)  # of a client without a secondary
BATCH_LIMIT = 262_144  # bytes of a message or batch until a link has told its limit: that of the Standard tier
SECTION_BYTES = 8  # that a batch adds around each message, at most
ENVELOPE_BYTES = 1024  # that a batch may add once: the ids and keys of its first message


class Order:
    """Numbers for the diverted messages of one sender, where order is kept; in a forked child those of another."""

    __slots__ = ("__weakref__", "numbers", "sender")

    def __init__(self) -> None:
        self.begin()
        _orders.add(self)

    def begin(self) -> None:
        """Begin to number, under a new id."""
        self.sender = uuid4().hex
        self.numbers = count(1)


_orders: WeakSet[Order] = WeakSet()


def _begin_in_child() -> None:
    for order in list(_orders):
        order.begin()


call_in_forked_child(_begin_in_child)


class Outgoing:
    """The messages of one call. `payloads` and `ids` hold the messages that no backlog queue has stored yet."""

    __slots__ = ("_counters", "doubts", "ids", "is_batch", "is_cancelled", "links", "payloads", "stored_ids", "untold")

    def __init__(
        self, payloads: list[bytes], ids: list[str], *, is_batch: bool, links: Sequence[Any] | None = None
    ) -> None:
        self.payloads = payloads
        self.ids = ids
        self.is_batch = is_batch
        "True: the primary gets the messages as one batch, also a single message."
        self.links = links
        "Links of the span around the send; None where the application does not trace."
        self.is_cancelled = False
        "True: the caller was interrupted; no further attempt, diversion or write to the spool."
        self.stored_ids: list[str] = []
        "Ids that are already stored in a backlog queue."
        self.untold: tuple[tuple[str, tuple[str, ...]], ...] = ()
        "(backlog queue, ids) that no event has told yet."
        self.doubts: dict[str, tuple[str, ...]] = {}
        "Place that did not answer (THE_PRIMARY or a backlog queue) → ids that it may have stored."
        self._counters: list[int] = []

    def __len__(self) -> int:
        return len(self.payloads)

    def for_primary(self) -> tuple[bytes, int]:
        """Return the payload for the primary, and its message format."""
        return (encode_batch(self.payloads), BATCH_FORMAT) if self.is_batch else (self.payloads[0], 0)

    def wrapped(self, path: str, first_attempt_ms: int | None, order: Order | None) -> list[bytes]:
        """Return backlog copies of the messages that are left. A message that is wrapped again keeps its number."""
        if order is None:
            wrapper = _usual_wrapper(path) if first_attempt_ms is None else Wrapper(Envelope(path, first_attempt_ms))
            return list(map(wrapper.wrap, self.payloads))
        return [
            wrap(payload, Envelope(path, first_attempt_ms, order.sender, counter))
            for payload, counter in zip(self.payloads, self._numbered(order), strict=True)
        ]

    def stored(self, count: int, queue: str) -> None:
        """Take off the first `count` messages: this backlog queue has them."""
        ids = tuple(self.ids[:count])
        self.stored_ids += ids
        self.untold += ((queue, ids),)
        self.payloads, self.ids = self.payloads[count:], self.ids[count:]
        del self._counters[:count]

    def entries(self, path: str, first_attempt_ms: int | None, order: Order | None) -> list[SpoolEntry]:
        now_ms = time.time_ns() // 1_000_000
        sender = None if order is None else order.sender
        counters: Sequence[int | None] = [None] * len(self.payloads) if order is None else self._numbered(order)
        return [
            SpoolEntry(path, payload, message_id, first_attempt_ms, sender, counter, now_ms)
            for payload, message_id, counter in zip(self.payloads, self.ids, counters, strict=True)
        ]

    def _numbered(self, order: Order) -> list[int]:
        while len(self._counters) < len(self.payloads):
            self._counters.append(next(order.numbers))
        return self._counters

    # ── unknown outcomes ──

    def unanswered(self, place: str, count: int | None = None) -> None:
        """Note that a place was given the first `count` messages that are left, or all, and did not answer."""
        known = self.doubts.get(place, ())
        self.doubts[place] = known + tuple(one for one in self.ids[:count] if one not in known)

    @property
    def doubted(self) -> dict[str, str]:
        """Return the ids that a backlog queue may have stored without an answer, each with the first such queue."""
        places: dict[str, str] = {}
        for place, ids in self.doubts.items():
            for one in ids if place != THE_PRIMARY else ():
                places.setdefault(one, place)
        return places

    @property
    def may_be_in(self) -> tuple[str, ...]:
        """List the places that may have stored some of the messages that are left."""
        left = set(self.ids)
        return tuple(place for place, ids in self.doubts.items() if not left.isdisjoint(ids))


@lru_cache(maxsize=256)
def _usual_wrapper(path: str) -> Wrapper:
    """Return the wrapper of messages that no other place can have; it remembers their forms from call to call."""
    return Wrapper(Envelope(path))


def sizes_of(payloads: Sequence[bytes]) -> tuple[int, int]:
    """Return (bytes, billable operations)."""
    if len(payloads) == 1:
        size = len(payloads[0])
        return size, billable_operations((size,))
    sizes = list(map(len, payloads))
    return sum(sizes), billable_operations(sizes)


def outgoing_of(argument: Any, traced: Traced | None = None) -> Outgoing | None:
    """Encode the messages that a caller wants to send; None when there is none.

    Raises the errors of the SDK, and ReservedPropertyError. `traced`: the spans that the messages carry.
    """
    if type(argument) is ServiceBusMessage:
        one = _ready(argument)
        try:
            payload = encode(one, traced)
        except Exception as error:
            raise sdk_error_for(error) from error
        return Outgoing([payload], [message_id_of(one)], is_batch=False, links=None if traced is None else traced.links)
    if isinstance(argument, ServiceBusMessageBatch):
        return _of_batch(argument, traced)
    messages = [_ready(message) for message in as_messages(argument)]
    if not messages:
        return None
    # The SDK sends every iterable as one batch, also when one message is in it.
    is_batch = isinstance(argument, Iterable) and not isinstance(argument, Mapping)
    payloads = [encode(message, traced) for message in messages]
    return Outgoing(
        payloads,
        [message_id_of(one) for one in messages],
        is_batch=is_batch,
        links=None if traced is None else traced.links,
    )


def scheduled(argument: Any, at: datetime, traced: Traced | None = None) -> tuple[list[Scheduled], Outgoing | None]:
    """Encode messages to schedule; None when there is none."""
    messages = [due_at(_ready(message), at) for message in as_messages(argument)]
    if not messages:
        return [], None
    payloads = [encode(message, traced) for message in messages]
    ids = [message_id_of(message) for message in messages]
    entries = [
        Scheduled(message.message_id, payload, message.session_id or None, message.partition_key or None)
        for message, payload in zip(messages, payloads, strict=True)
    ]
    return entries, Outgoing(payloads, ids, is_batch=True, links=None if traced is None else traced.links)


def _of_batch(batch: ServiceBusMessageBatch, traced: Traced | None) -> Outgoing | None:
    messages = as_messages(batch)
    if not messages:
        return None
    if type(batch) is PairedMessageBatch:
        ids, payloads = list(batch.ids), encoded(batch)
    else:
        ready = [_ready(message) for message in messages]
        as_it_is = all(one is other for one, other in zip(ready, messages, strict=True))
        payloads = encoded(batch) if as_it_is else [encode(one) for one in ready]
        ids = [message_id_of(one) for one in ready]
    return Outgoing(payloads, ids, is_batch=True, links=None if traced is None else batch_links(batch))


class PairedMessageBatch(ServiceBusMessageBatch):
    """A batch of the SDK whose messages get ids, and are checked, when they are added."""

    def __init__(self, limit: int, tracing_attributes: dict[str, Any] | None = None) -> None:
        super().__init__(
            max_size_in_bytes=limit, amqp_transport=BATCH_TRANSPORT, tracing_attributes=tracing_attributes or {}
        )
        self.ids: list[str] = []

    def add_message(self, message: Any) -> None:
        (one,) = map(_ready, as_messages([message]))
        super().add_message(one)
        self.ids.append(message_id_of(one))


def new_batch(link_limit: int, wanted: int | None, tracing_attributes: dict[str, Any]) -> PairedMessageBatch:
    limit = link_limit or BATCH_LIMIT
    if wanted is not None and wanted > limit:
        raise ValueError(f"Max message size: {wanted} is too large, acceptable max batch size is: {limit} bytes.")
    return PairedMessageBatch(wanted or limit, tracing_attributes)


def parcels(payloads: Sequence[bytes], batch_limit: int, message_limit: int) -> list[tuple[bytes, int, int]]:
    """Pack messages into as few sends as the limits of the link allow: (payload, message format, messages in it).

    A limit of 0 is not known. A message that is too large for any batch goes alone. MessageSizeExceededError when one
    message alone is too large; nothing was sent then.
    """
    limit = batch_limit or BATCH_LIMIT
    largest = max(map(len, payloads))
    if 0 < message_limit < largest:
        raise MessageSizeExceededError(message=f"{largest} bytes, and a backlog queue takes {message_limit}")
    if len(payloads) == 1:
        return [(payloads[0], 0, 1)]
    parts: list[list[bytes]] = [[]]
    room = limit - ENVELOPE_BYTES
    for payload in payloads:
        room -= len(payload) + SECTION_BYTES
        if room < 0 and parts[-1]:
            parts.append([])
            room = limit - ENVELOPE_BYTES - len(payload) - SECTION_BYTES
        parts[-1].append(payload)
    return [(part[0], 0, 1) if len(part) == 1 else (encode_batch(part), BATCH_FORMAT, len(part)) for part in parts]


def _ready(message: ServiceBusMessage) -> ServiceBusMessage:
    """Return the message with an id; ReservedPropertyError when it has a property with one of our names."""
    if message.application_properties:
        name = reserved_property(message, RESERVED)
        if name is not None:
            raise ReservedPropertyError(name)
    return ensure_message_id(message)
