"""One topic: messages are sent to it, and each subscription gets the copies that its rules select.

All copies of a send are one write: either every subscription gets its copies or none does. Scheduled messages wait in
the topic; the rules are evaluated when their time comes. The topic itself keeps no other messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from pairbus.broker.boxes.box import deletion
from pairbus.broker.description import TopicDescription
from pairbus.broker.entities.destination import Destination
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.entity import NamespaceParts
from pairbus.broker.entities.publication import Publication
from pairbus.broker.entities.subscription_index import SubscriptionIndex
from pairbus.broker.store import ACTIVE, SCHEDULED, Done, Insert, RaiseSeq, StoredMessage
from pairbus.errors import StoreError
from pairbus.filters import CorrelationFilter


class Topic(Destination):
    """A topic: its way in is `Destination`; its subscriptions have the messages. Its box has the scheduled ones."""

    description: TopicDescription
    _activates_with_bodies: ClassVar[bool] = True

    def __init__(
        self,
        topic_id: int,
        description: TopicDescription,
        parts: NamespaceParts,
        *,
        now_ms: int,
        last_seq: int = 0,
    ) -> None:
        super().__init__(topic_id, description, parts, now_ms=now_ms, last_seq=last_seq)
        self.index = SubscriptionIndex()
        self.subscriptions = self.index.subscriptions
        "Subscriptions by name in lower case."
        self._pending_bytes = 0
        "Bytes of copies that are written and not yet committed."
        self._apply_settings()

    def __repr__(self) -> str:
        return f"<Topic {self.path} {self.description.status} subscriptions={len(self.subscriptions)}>"

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages; each payload counts once, until the last subscription has no copy of it."""
        own = sum(subscription.own_bytes for subscription in self.subscriptions.values())
        return self._pending_bytes + self.main.size_bytes + self.payloads.bytes_of(self.entity_id) + own

    def filter_counts(self) -> tuple[int, int]:
        """Count the SQL filters and the correlation filters of all subscriptions."""
        rules = [rule for subscription in self.subscriptions.values() for rule in subscription.rules.values()]
        correlations = sum(isinstance(rule.description.filter, CorrelationFilter) for rule in rules)
        return len(rules) - correlations, correlations

    # ── sending ──

    def _write(self, drafts: Sequence[Draft], now_ms: int) -> Done:
        publication = Publication(self.entity_id, self.store)
        for draft in drafts:
            message = self._new(draft, now_ms)
            if message.state == SCHEDULED:
                message.n = self.store.number()
                publication.scheduled.append(message)
            else:
                publication.add(message, self.index, now_ms)
        if publication.scheduled:
            self.store.write(Insert(self.main.number, publication.scheduled))
            self.main.size_bytes += sum(message.size for message in publication.scheduled)
        publication.write()
        self.store.write(RaiseSeq(self.entity_id, self.last_seq))
        self._pending_bytes += publication.size
        return partial(self._take_in, publication)

    def _new(self, draft: Draft, now_ms: int) -> StoredMessage:
        self.last_seq += 1
        ttl_ms, ceiling_ms = draft.ttl_ms or 0, self.ttl_ceiling_ms
        if ceiling_ms and (not ttl_ms or ttl_ms > ceiling_ms):
            ttl_ms = ceiling_ms
        is_scheduled = draft.scheduled_ms > now_ms
        return StoredMessage(
            self.last_seq,
            draft.body,
            annotations=draft.annotations,
            message_id=draft.message_id,
            state=SCHEDULED if is_scheduled else ACTIVE,
            enqueued_ms=now_ms,
            scheduled_ms=draft.scheduled_ms if is_scheduled else 0,
            ttl_ms=ttl_ms,
            session_id=draft.session_id or "",
            hops=draft.hops,
            origin_seq=draft.origin_seq,
        )

    def _take_in(self, publication: Publication, error: StoreError | None) -> None:
        """Put copies whose write is committed into the boxes of their subscriptions."""
        self._finish(publication, error)
        for message in publication.scheduled:
            if error is None:
                self._schedule.add(message)
            else:
                self.main.size_bytes -= message.size

    def _finish(self, publication: Publication, error: StoreError | None) -> None:
        self._pending_bytes -= publication.size
        if error is None:
            for each in publication.payloads:
                self.payloads.add(each.payload, self.entity_id, len(each.body))
            publication.committed()

    # ── scheduled messages ──

    def _activate(self, messages: list[StoredMessage], now_ms: int) -> None:
        """Publish scheduled messages whose time has come, under new numbers."""
        publication = Publication(self.entity_id, self.store)
        for message in messages:
            self.last_seq += 1
            publication.add(message.revised(seq=self.last_seq), self.index, now_ms)
        publication.write()
        if messages:
            self.store.write(deletion(self.main, messages))
            self.store.write(RaiseSeq(self.entity_id, self.last_seq))
        self._pending_bytes += publication.size
        self.store.after_commit(partial(self._activated, messages, publication, now_ms))

    def _activated(
        self, messages: list[StoredMessage], publication: Publication, now_ms: int, error: StoreError | None
    ) -> None:
        self._schedule.activated(messages, now_ms, error)
        self._finish(publication, error)
        if error is None:
            self.main.size_bytes -= sum(message.size for message in messages)
        self.go_on(self.main, now_ms, error)
