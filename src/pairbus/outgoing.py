"""What one call of `send_messages` was given, in the forms in which it travels.

To the primary it goes as the plain SDK would send it: a message, a list as one batch, a batch. To a backlog queue go
wrapped copies, in as few batches as hold them; what was stored is taken off, so that another queue gets only the rest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus import sdk
from pairbus.ledger import billable_operations, tallied
from pairbus.ledger.rows import BILLING_UNIT_BYTES
from pairbus.pairing.envelope import RESERVED, Away, Wrapper, wrap
from pairbus.send_errors import ReservedPropertyError
from pairbus.spool import Entry

THE_PRIMARY = "the primary"
DEFAULT_LIMIT = 262_144  # bytes of a message or batch where no link has said otherwise: the Standard tier's
ESTIMATE_DOUBT = 1024  # bytes by which an estimate may be wrong without anybody paying for it


class Order:
    """Numbers the diverted messages of one sender, where order is kept."""

    __slots__ = ("counter", "sender")

    def __init__(self) -> None:
        self.sender = uuid4().hex
        self.counter = 0

    def next(self) -> int:
        self.counter += 1
        return self.counter


class Outgoing:
    """One call's messages. Empty ones are None: there is nothing to do."""

    __slots__ = ("_counters", "doubts", "given", "has_turn", "is_small", "messages", "stored_ids", "untold")

    def __init__(self, given: Any, messages: list[ServiceBusMessage], *, is_small: bool = False) -> None:
        self.given = given
        "For the primary."
        self.messages = messages
        "Those that no backlog queue has stored yet. Never changed in place: it may be the batch's own list."
        self.stored_ids: list[str] = []
        "Those that one has."
        self.doubts: dict[str, tuple[str, ...]] = {}
        "By each place that did not answer, THE_PRIMARY or a backlog queue: the ids of what it may have stored."
        self.untold: tuple[tuple[str, tuple[str, ...]], ...] = ()
        "(backlog queue, ids) of those of them that no event has told yet."
        self.has_turn = False
        "It has the primary's line, and keeps it while it tries again."
        self.is_small = is_small
        "It fits every queue there is; False: somebody has to look."
        self._counters: list[int] = []

    @property
    def message_ids(self) -> tuple[str, ...]:
        return tuple(sdk.message_id_of(message) for message in self.messages)

    def size(self) -> tuple[int, int]:
        """(bytes, billable operations) of the whole call; exact wherever a limit of billing is near.

        A batch is not looked into when each of its messages is known to be small, or all of them together are.
        """
        given = self.given
        is_encoded = isinstance(given, sdk.EncodedBatch)
        if isinstance(given, ServiceBusMessageBatch) and not is_encoded:
            size = given.size_in_bytes
            if size <= BILLING_UNIT_BYTES or (type(given) is PairedMessageBatch and given.is_small):
                return size, len(self.messages)
        size_of: Callable[[Any], int] = len if is_encoded else _size_of
        sizes = list(map(size_of, self.messages))
        return sum(sizes), billable_operations(sizes)

    # ── to a backlog queue ──

    def wrapped(self, path: str, first_attempt_ms: int | None, order: Order | None) -> list[Any]:
        """Copies of what is left for `batches`: one as a message, several as bytes, which is half the work.

        A message keeps the number it got first, however often it is wrapped.
        """
        sender, counters = self._numbered(order)
        if len(self.messages) == 1:
            (message,), (counter,) = self.messages, counters
            return [sdk.wrapped(message, path=path, first_attempt_ms=first_attempt_ms, sender=sender, counter=counter)]
        given = self.given
        if type(given) is PairedMessageBatch and first_attempt_ms is None and order is None:
            away = given.wrapped_for(path)
            if away is not None:
                return list(away.payloads)
        payloads = sdk.encoded(given, self.messages)
        if order is None:
            return list(map(Wrapper(Away(path, first_attempt_ms)).wrap, payloads))
        return [
            wrap(bytes(payload), Away(path, first_attempt_ms, sender, counter))
            for payload, counter in zip(payloads, counters, strict=True)
        ]

    def stored(self, count: int, queue: str) -> None:
        """The first ones of what was left are in this backlog queue; only the others may go anywhere else."""
        given = self.given
        ids = (
            tuple(given.ids) if type(given) is PairedMessageBatch and given.count == count else self.message_ids[:count]
        )
        self.stored_ids += ids
        self.untold += ((queue, ids),)
        self.messages = self.messages[count:]
        del self._counters[:count]
        self.given = list(self.messages)

    def unanswered(self, place: str, count: int | None = None) -> None:
        """The place was given what is left, or the first ones of it, and nobody knows what it did with them."""
        known = self.doubts.get(place, ())
        self.doubts[place] = known + tuple(one for one in self.message_ids[:count] if one not in known)

    @property
    def doubted(self) -> dict[str, str]:
        """By each id that a backlog queue may have without having said so: the first such queue."""
        found: dict[str, str] = {}
        for place, ids in self.doubts.items():
            for one in ids if place != THE_PRIMARY else ():
                found.setdefault(one, place)
        return found

    @property
    def may_be_in(self) -> tuple[str, ...]:
        """The places that may have stored some of what is left."""
        left = set(self.message_ids)
        return tuple(place for place, ids in self.doubts.items() if not left.isdisjoint(ids))

    # ── to the spool ──

    def entries(self, path: str, first_attempt_ms: int | None, order: Order | None) -> list[Entry]:
        sender, counters = self._numbered(order)
        now_ms = time.time_ns() // 1_000_000
        return [
            Entry(path, sdk.encode(message), sdk.message_id_of(message), first_attempt_ms, sender, counter, now_ms)
            for message, counter in zip(self.messages, counters, strict=True)
        ]

    def _numbered(self, order: Order | None) -> tuple[str | None, Sequence[int | None]]:
        """The sender and the numbers that the messages carry, where order is kept."""
        if order is None:
            return None, [None] * len(self.messages)
        while len(self._counters) < len(self.messages):
            self._counters.append(order.next())
        return order.sender, self._counters


def outgoing(given: Any) -> Outgoing | None:
    """What a caller wants to send; None when that is nothing. Raises what the SDK would, and ReservedPropertyError."""
    ready = straight(given)
    if ready is not None:
        return as_outgoing(ready)
    messages = sdk.as_messages(given)
    if not messages:
        return None
    messages = [_ready(message) for message in messages]
    if isinstance(given, ServiceBusMessageBatch) and messages == sdk.as_messages(given):
        return Outgoing(given, messages)
    # The SDK sends a list as one batch, also when one message is in it.
    one = not isinstance(given, ServiceBusMessageBatch) and len(messages) == 1 and not isinstance(given, Sequence)
    return Outgoing(messages[0] if one else messages, list(messages))


def straight(given: Any) -> Any:
    """What can go to the primary at once: a message, or a batch of ours; None when `outgoing` has to look at it."""
    if type(given) is ServiceBusMessage:
        return sdk.readied(given)
    return given if type(given) is PairedMessageBatch and given.is_small else None


def as_outgoing(ready: Any) -> Outgoing:
    """What `straight` has found ready."""
    return Outgoing(ready, sdk.members(ready) if type(ready) is PairedMessageBatch else [ready], is_small=True)


def readily_wrapped(ready: Any, path: str, aliases: bytes, limit: int, *, aio: bool = False) -> Any:
    """What `straight` has found ready as one batch for a backlog queue; None when that is not quickly done.

    A batch also for a message alone: the SDK would take far longer to encode the aliases.
    """
    if type(ready) is PairedMessageBatch:
        batch = ready.wrapped_for(path) if ready.aio is aio else None
    else:
        payload = sdk.plainly_encoded(ready, aliases)
        batch = None if payload is None else sdk.EncodedBatch.alone(payload, aio=aio)
    return batch if batch is not None and batch.size_in_bytes <= (limit or DEFAULT_LIMIT) else None


def ids_of(ready: Any) -> list[str]:
    """Of what `straight` has found ready."""
    return ready.ids if type(ready) is PairedMessageBatch else [sdk.message_id_of(ready)]


class PairedMessageBatch(ServiceBusMessageBatch):
    """Looks at each message when it is added, so that nobody has to look at all of them when the batch is sent."""

    is_small = False
    "It has messages, and each of them fits every queue there is."
    count = 0
    counted = 0
    "All of them, as a tally counts."

    def __init__(self, limit: int, *, wrapped_for: str | None = None, aio: bool = False) -> None:
        """`wrapped_for`: an entity that is failed over; its messages are wrapped while they are at hand."""
        transport = sdk.batch_transport(aio=aio)
        super().__init__(max_size_in_bytes=limit, amqp_transport=transport)
        self.aio = aio
        self.ids: list[str] = []
        self._path = wrapped_for
        self._wrapper: Wrapper | None = None
        self.away: sdk.EncodedBatch | None = None
        "The same messages, wrapped."
        if wrapped_for is not None:
            self._wrapper = Wrapper(Away(wrapped_for))
            self.away = sdk.EncodedBatch(max_size_in_bytes=sys.maxsize, amqp_transport=transport)

    def add_message(self, message: Any) -> None:
        (one,) = map(_ready, sdk.as_messages([message]))
        super().add_message(one)
        self.is_small = (self.is_small or not self.count) and sdk.body_size(one) < sdk.SMALL
        self.ids.append(sdk.message_id_of(one))
        self.count += 1
        self.counted = tallied(self.size_in_bytes, self.count)
        if self._wrapper is not None and self.away is not None:
            self.away.add_encoded(self._wrapper.wrap(sdk.encoded(self, [])[-1]))

    def wrapped_for(self, path: str) -> sdk.EncodedBatch | None:
        """All of them, wrapped for this entity; None when they are not."""
        away = self.away
        return away if away is not None and self._path == path and len(away) == self.count else None


def batches(messages: list[Any], limit: int, *, aio: bool = False) -> list[tuple[Any, int]]:
    """In as few sends as the limit of the link allows: (what to send, how many messages it holds)."""
    if len(messages) == 1:
        return [(messages[0], 1)]
    transport = sdk.batch_transport(aio=aio)
    parts: list[tuple[Any, int]] = []
    batch = sdk.EncodedBatch(max_size_in_bytes=limit, amqp_transport=transport)
    if batch.holds(messages):
        return [(batch, len(messages))]
    for payload in messages:
        try:
            batch.add_encoded(payload)
        except MessageSizeExceededError:
            if len(batch):
                parts.append((batch, len(batch)))
            batch = sdk.EncodedBatch(max_size_in_bytes=limit, amqp_transport=transport)
            batch.add_encoded(payload)  # MessageSizeExceededError: alone it is too large, and nothing was sent yet
    parts.append((batch, len(batch)))
    return parts


def new_batch(
    link_limit: int, wanted: int | None, *, wrapped_for: str | None = None, aio: bool = False
) -> PairedMessageBatch:
    limit = link_limit or DEFAULT_LIMIT
    if wanted is not None and wanted > limit:
        raise ValueError(f"Max message size: {wanted} is too large, acceptable max batch size is: {limit} bytes.")
    return PairedMessageBatch(wanted or limit, wrapped_for=wrapped_for, aio=aio)


def _ready(message: ServiceBusMessage) -> ServiceBusMessage:
    """The message with an id; ReservedPropertyError when it has a property that is ours."""
    if message.application_properties:
        name = sdk.reserved_property(message, RESERVED)
        if name is not None:
            raise ReservedPropertyError(name)
        message = sdk.spared(message)
    return sdk.ensure_message_id(message)


def _size_of(message: ServiceBusMessage) -> int:
    """Encoding costs more than the send's whole overhead may: an estimate, unless it is near a multiple of 64 KB."""
    estimate = sdk.body_size(message) + sdk.USUAL_ENVELOPE_BYTES
    if message.application_properties:
        estimate += 40 * len(message.application_properties)
    above = estimate + ESTIMATE_DOUBT
    is_near = above > BILLING_UNIT_BYTES and above % BILLING_UNIT_BYTES < 2 * ESTIMATE_DOUBT
    return sdk.size(message) if is_near else estimate
