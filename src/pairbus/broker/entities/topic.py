"""One topic: messages are sent to it, and each subscription gets the copies that its rules select.

All copies of a send are one write: either every subscription gets its copies or none does. Scheduled messages wait in
the topic; the rules are evaluated when their time comes. The topic itself keeps no other messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pairbus.broker.boxes.box import Box, deletion
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.description import TopicDescription
from pairbus.broker.entities.admission import Admission
from pairbus.broker.entities.audience import Audience
from pairbus.broker.entities.entity import RETRY_PAUSE_MS, Entity
from pairbus.broker.entities.payloads import Payloads
from pairbus.broker.entities.publication import Publication
from pairbus.broker.entities.schedule import Schedule
from pairbus.broker.kit.recorder import Recorder
from pairbus.broker.store import ACTIVE, SCHEDULED, IndexRow, Insert, RaiseSeq, Store, StoredMessage, box_of
from pairbus.broker.sweep import Remains
from pairbus.broker.wire.draft import Draft
from pairbus.errors import StoreError
from pairbus.filters import CorrelationFilter


class Topic:
    """One topic: a way in (`Admission`), scheduled messages (`Schedule`), and subscriptions."""

    def __init__(
        self,
        topic_id: int,
        description: TopicDescription,
        store: Store,
        payloads: Payloads,
        *,
        now_ms: int,
        last_seq: int = 0,
        on_ready: Callable[[Box], None],
        budget: MemoryBudget | None = None,
    ) -> None:
        """Make a topic. `on_ready` is called when `next_due_ms` may have changed without a call."""
        self.topic_id = topic_id
        self.audience = Audience()
        self.subscriptions = self.audience.subscriptions
        "Subscriptions by name in lower case."
        self._store = store
        self._payloads = payloads
        self._entity = entity = Entity(
            topic_id,
            description.path,
            description,
            store,
            payloads,
            budget := budget or MemoryBudget(),
            now_ms=now_ms,
            last_seq=last_seq,
            on_ready=on_ready,
            run_due=self.run_due,
        )
        self.box = Box(box_of(topic_id), store, entity.commits, payloads, budget=budget, on_expired=_never_expires)
        "Box of scheduled messages; no client ever receives from it."
        self._schedule = Schedule(entity, self.box, self._activate, with_bodies=True)
        self._pending_bytes = 0
        "Bytes of copies that are written and not yet committed."
        self._admission: Admission[Publication] = Admission(
            entity,
            accept=self._accept,
            accepted=self._accepted,
            admitted=lambda publication: entity.announce(self.box),
            size=lambda: self.size_bytes,
        )
        self._describe(description)
        self.send, self.schedule = self._admission.send, self._admission.schedule
        self.forward = self._admission.forward
        self.cancel_scheduled = self._schedule.cancel
        self.check_room, self.is_claimed = self._admission.check_room, self._admission.is_claimed
        self.check_memory = self._admission.check_memory
        self.check_quota = self._admission.check_quota
        self.check_send, self.touch, self.shift = entity.check_send, entity.touch, entity.shift

    def __repr__(self) -> str:
        return f"<Topic {self.path} {self.description.status} subscriptions={len(self.subscriptions)}>"

    @property
    def path(self) -> str:
        return self.description.path

    @property
    def closed(self) -> bool:
        return self._entity.closed

    @property
    def last_seq(self) -> int:
        return self._entity.last_seq

    @property
    def scheduled_count(self) -> int:
        return self.box.scheduled_count

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages; each payload counts once, until the last subscription has no copy of it."""
        own = sum(subscription.own_bytes for subscription in self.subscriptions.values())
        return self._pending_bytes + self.box.size_bytes + self._payloads.bytes_of(self.topic_id) + own

    @property
    def accessed_ms(self) -> int:
        return self._entity.accessed_ms

    @property
    def idle_until_ms(self) -> int | None:
        """The time at which the topic may be deleted as idle; None: never, or not while messages are scheduled.

        A use of a subscription is a use of its topic too, but is noted only when this time has come: there may be many
        subscriptions.
        """
        return None if self.scheduled_count else self._entity.idle_until_ms(0)

    def filter_counts(self) -> tuple[int, int]:
        """Count the SQL filters and the correlation filters of all subscriptions."""
        rules = [rule for subscription in self.subscriptions.values() for rule in subscription.rules.values()]
        correlations = sum(isinstance(rule.description.filter, CorrelationFilter) for rule in rules)
        return len(rules) - correlations, correlations

    # ── start, change, end ──

    def recover(self, row: IndexRow) -> bool:
        """Take a row of the store's index; False: its payload is missing."""
        return self._schedule.recover(row)

    def taker(self, box: int) -> Callable[[IndexRow], bool]:
        """Return `recover` for the rows of one box."""
        return self._schedule.recover

    def recovered(self, now_ms: int) -> None:
        """Note that the index was read to its end."""
        self._admission.recover()
        self.touch(now_ms)

    def update(self, description: TopicDescription, now_ms: int) -> None:
        self._describe(description)
        self.touch(now_ms)

    def _describe(self, description: TopicDescription) -> None:
        self.description = description
        self._entity.describe(description.path, description)
        self._admission.describe(description)
        self.message_size_max = self._admission.message_size_max

    def close(self) -> None:
        """Stop taking and writing messages, before `DropEntity` is written. Answers that are due still come."""
        self._entity.closed = True
        self._describe(self.description)

    def give_way(self, after: Topic) -> None:
        """Close, because a reset has put an empty topic in this one's place; sends that wait go on there."""
        self.close()
        self._admission.successor = after._admission

    def record_sends(self, recorder: Recorder) -> None:
        """Tell the recorder of every message that is accepted from now on."""
        self._admission.recorder = recorder

    def stop(self) -> None:
        """Stop `run_due`, before the store is closed."""
        self._entity.is_stopping = True

    def discharge(self) -> None:
        """Count against the budget no more: the namespace is closed."""
        self._entity.moving.close()
        self.box.discharge()
        self._schedule.discharge()
        self._admission.discharge()

    def reopen(self, now_ms: int) -> None:
        """Undo `close`: the deletion could not be stored."""
        self._entity.closed = False
        self.update(self.description, now_ms)

    def remains(self) -> Remains:
        """Return the rows to sweep once the drop is committed."""
        row_bytes = self.box.size_bytes // (self.box.scheduled_count + 1)
        return Remains(self.topic_id, [(self.box.number, self._schedule.drain)], self._admission.ends(), row_bytes)

    # ── sending ──

    def _accept(self, drafts: Sequence[Draft], now_ms: int) -> Publication:
        publication = Publication(self.topic_id, self._store)
        for draft in drafts:
            message = self._new(draft, now_ms)
            if message.state == SCHEDULED:
                message.n = self._store.number()
                publication.scheduled.append(message)
            else:
                publication.add(message, self.audience, now_ms)
        if publication.scheduled:
            self._store.write(Insert(self.box.number, publication.scheduled))
            self.box.size_bytes += sum(message.size for message in publication.scheduled)
        publication.write()
        self._store.write(RaiseSeq(self.topic_id, self._entity.last_seq))
        self._pending_bytes += publication.size
        return publication

    def _new(self, draft: Draft, now_ms: int) -> StoredMessage:
        self._entity.last_seq += 1
        ttl_ms, ceiling_ms = draft.ttl_ms or 0, self._entity.ttl_ceiling_ms
        if ceiling_ms and (not ttl_ms or ttl_ms > ceiling_ms):
            ttl_ms = ceiling_ms
        is_scheduled = draft.scheduled_ms > now_ms
        return StoredMessage(
            self._entity.last_seq,
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

    def _accepted(self, publication: Publication, error: StoreError | None) -> None:
        self._finish(publication, error)
        for message in publication.scheduled:
            if error is None:
                self._schedule.add(message)
            else:
                self.box.size_bytes -= message.size

    def _finish(self, publication: Publication, error: StoreError | None) -> None:
        self._pending_bytes -= publication.size
        if error is None:
            for each in publication.payloads:
                self._payloads.add(each.payload, self.topic_id, len(each.body))
            publication.committed()

    # ── scheduled messages ──

    def _activate(self, messages: list[StoredMessage], now_ms: int) -> None:
        """Publish scheduled messages whose time has come, under new numbers."""
        publication = Publication(self.topic_id, self._store)
        for message in messages:
            self._entity.last_seq += 1
            publication.add(message.revised(seq=self._entity.last_seq), self.audience, now_ms)
        publication.write()
        if messages:
            self._store.write(deletion(self.box, messages))
            self._store.write(RaiseSeq(self.topic_id, self._entity.last_seq))
        self._pending_bytes += publication.size
        self._entity.commits.then(self._activated, (messages, publication), now_ms)

    def _activated(
        self, subject: tuple[list[StoredMessage], Publication], now_ms: int, error: StoreError | None
    ) -> None:
        messages, publication = subject
        self._schedule.activated(messages, now_ms, error)
        self._finish(publication, error)
        if error is None:
            self.box.size_bytes -= sum(message.size for message in messages)
        self._entity.go_on(self.box, now_ms, error)

    # ── due work ──

    def next_due_ms(self) -> int | None:
        """Return a time not later than the next work of `run_due`, perhaps earlier. Ask again after every call."""
        known = [at_ms for at_ms in (self._schedule.next_ms(), self._admission.next_ms()) if at_ms is not None]
        return max(min(known), self._entity.paused_until_ms) if known else None

    @property
    def is_catching_up(self) -> bool:
        """True while a batch of due work is being committed; the next one follows by itself."""
        return self._schedule.is_busy

    def run_due(self, now_ms: int) -> None:
        """Do a bounded part of the due work: scheduled messages, old message ids."""
        if not self._entity.may_run_due(now_ms):
            return
        try:
            self._schedule.run(now_ms)
        except StoreError:
            # The messages cannot be read now, which the store itself reports: they are unchanged, and are tried again.
            self._entity.pause(now_ms)
        self._entity.look_again_ms = now_ms + RETRY_PAUSE_MS
        self._admission.run_due(now_ms)


def _never_expires(messages: list[StoredMessage], now_ms: int) -> None:
    """Do nothing: the time to live of a scheduled message begins with its activation."""
    raise AssertionError(f"{len(messages)} messages of a topic's box expired")
