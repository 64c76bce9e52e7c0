"""A link on which a client sends: accepted means committed, and acceptances leave as ranges."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.events import Delivery
from pairbus.amqp.link import MASK, ReceiverLink
from pairbus.amqp.performatives import ACCEPTED_BYTES
from pairbus.broker.messages import drafts_of, is_ping
from pairbus.broker.outlet import refused
from pairbus.broker.queue import Queue
from pairbus.broker.refusal import MESSAGE_SIZE_EXCEEDED, Refusal, refusal_of
from pairbus.errors import StoreError

if TYPE_CHECKING:
    from pairbus.broker.peer import Peer

CREDIT = 1000
BATCH_ENVELOPE_SIZE = 1024  # the SDKs do not count the envelope of a batch against the limit


class Inlet:
    """One sending client on one queue."""

    def __init__(self, peer: Peer, link: ReceiverLink, queue: Queue, path: str) -> None:
        self.peer = peer
        self.link = link
        self.queue = queue
        self.path = path
        "As the client spelled it: what its token must cover."
        self._first = self._last = 0
        self._accepted = 0
        "Deliveries first … last, all committed, whose acceptance has not been said yet."

    def __repr__(self) -> str:
        return f"<Inlet {self.queue.path} {self.link!r}>"

    @property
    def size_limit(self) -> int:
        return self.queue.description.max_message_size_kb * 1024

    def on_delivery(self, delivery: Delivery, now_ms: int) -> None:
        size = len(delivery.payload)
        try:
            if delivery.too_large or (size > self.size_limit and delivery.message_format == 0):
                raise Refusal(
                    MESSAGE_SIZE_EXCEEDED, f"The message is larger than the {self.size_limit} bytes of this link."
                )
            drafts = drafts_of(delivery.payload, delivery.message_format)
            if len(drafts) > 1 or is_ping(drafts[0]):
                drafts = [draft for draft in drafts if not is_ping(draft)]
            if not drafts:
                self._on_ping(delivery, now_ms)
                return
            self.queue.send(drafts, now_ms, partial(self._committed, delivery.delivery_id, size, delivery.settled))
        except ProtocolError as error:
            self._answer(delivery.delivery_id, delivery.settled, Refusal(error.condition, error.description))
        except Refusal as refusal:
            self._answer(delivery.delivery_id, delivery.settled, refusal)
        else:
            self.peer.holds(size)

    def _on_ping(self, delivery: Delivery, now_ms: int) -> None:
        """A ping proves that the queue takes messages now, and leaves nothing behind."""
        self.queue.check_room()

        def answer(error: StoreError | None) -> None:
            self._answer(delivery.delivery_id, delivery.settled, None if error is None else refusal_of(error))

        self.peer.namespace.store.after_commit(answer)

    def _committed(self, delivery_id: int, size: int, settled: bool, refusal: Refusal | None) -> None:
        self.peer.lets_go(size)
        self._answer(delivery_id, settled, refusal)

    def _answer(self, delivery_id: int, settled: bool, refusal: Refusal | None) -> None:
        if settled:
            return
        if refusal is not None:
            self.link.settle(delivery_id, delivery_id, refused(refusal), 1)
        elif self._accepted and delivery_id == (self._last + 1) & MASK:
            self._last = delivery_id
            self._accepted += 1
        else:
            self.say_accepted()
            self._first = self._last = delivery_id
            self._accepted = 1
        self.peer.flush_soon(self)

    def say_accepted(self) -> None:
        if self._accepted:
            self.link.settle(self._first, self._last, ACCEPTED_BYTES, self._accepted)
            self._accepted = 0

    def close(self) -> None:
        """Nothing is kept here that a closed link would leave behind."""
