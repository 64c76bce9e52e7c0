"""State and life of every entity: store, numbers, settings, status, time of last use, and when its due work runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from pairbus.broker.boxes.box import Box
from pairbus.broker.boxes.payloads import Payloads
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.entities.sweep import Drain, Remains
from pairbus.broker.refusal import ENTITY_DISABLED, Refusal, entity_not_found
from pairbus.broker.store import IndexRow, Store, StoredMessage, box_of
from pairbus.errors import StoreError
from pairbus.settings.durations import UNLIMITED_MS

RETRY_PAUSE_MS = 1000  # before due work is tried again after the store failed

EntityDone = Callable[[Refusal | None], None]
EntityDescription = QueueDescription | TopicDescription | SubscriptionDescription
"Settings of an entity that holds messages."


class NamespaceParts(NamedTuple):
    """Parts of a namespace that its entities share."""

    store: Store
    payloads: Payloads
    budget: MemoryBudget
    on_ready: Callable[[Any, Box], None]
    """`on_ready(entity, box)` is called when a message may have become available in a box, or `next_due_ms` of the
    entity may have changed, in a commit or an `update`. After a call of its own (a lock, `run_due`) the caller asks for
    `next_due_ms` itself."""


class Entity:
    """A queue, a topic or a subscription: the base of `Destination` and `Receivable`."""

    description: EntityDescription

    def __init__(
        self,
        entity_id: int,
        description: EntityDescription,
        parts: NamespaceParts,
        *,
        now_ms: int,
        last_seq: int = 0,
    ) -> None:
        """Make the entity. The last class of the chain calls `_apply_settings` when all parts are made."""
        self.entity_id = entity_id
        self.description = description
        self.store, self.payloads, self.budget = parts.store, parts.payloads, parts.budget
        self._on_ready = parts.on_ready
        self.moving = parts.budget.moving.share()
        "Bytes of messages that an uncommitted batch of due work moves."
        self.used_ms = now_ms
        "Time of the last use that the entity saw itself; `accessed_ms` knows of all."
        self.last_seq = last_seq
        "Highest sequence number given out: never given again, also when its commit failed."
        self.closed = False
        self.is_stopping = False
        self.paused_until_ms = 0
        self.look_again_ms = 0
        "Time to try a batch of due work again, set while it is under way because it may fail."
        self.main = self._make_box(box_of(entity_id), has_sessions=self.requires_session)
        "Box of the entity's own messages: all but dead letters."
        self.boxes: tuple[Box, ...] = (self.main,)

    def _make_box(self, number: int, *, has_sessions: bool = False) -> Box:
        return Box(
            number,
            self.store,
            self.payloads,
            budget=self.budget,
            on_expired=self._expired_in_search,
            on_freed=self.announce if has_sessions else None,
        )

    def _expired_in_search(self, messages: list[StoredMessage], now_ms: int) -> None:
        """Take expired messages that a receiver's search in a box met."""
        raise AssertionError(f"{len(messages)} messages of {self.path} expired, which has no receivers")

    # ── settings and status ──

    def _apply_settings(self) -> None:
        """Take over what `description` says, or that the entity is closed."""
        settings = self.description
        self.path = settings.path
        ttl_ms = settings.default_ttl_ms
        self.ttl_ceiling_ms = 0 if ttl_ms is None or ttl_ms >= UNLIMITED_MS else ttl_ms
        "Ceiling of the time to live in milliseconds; 0: none."
        self.sendable = settings.status in ("Active", "ReceiveDisabled") and not self.closed
        self.receivable = settings.status in ("Active", "SendDisabled") and not self.closed

    @property
    def requires_session(self) -> bool:
        return False

    def check_send(self) -> None:
        """Refuse when the status forbids sending."""
        if not self.sendable:
            raise self._status_refusal()

    def check_receive(self) -> None:
        """Refuse when the status forbids receiving; this holds for the dead-letter queue as well."""
        if not self.receivable:
            raise self._status_refusal()

    def _status_refusal(self) -> Refusal:
        if self.closed:
            return entity_not_found(self.path)
        return Refusal(ENTITY_DISABLED, f"The messaging entity '{self.path}' is in status {self.description.status}.")

    # ── counts and times ──

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages, as they count towards the quota."""
        return self.main.size_bytes

    @property
    def scheduled_count(self) -> int:
        return self.main.scheduled_count

    @property
    def accessed_ms(self) -> int:
        return self.used_ms

    def touch(self, now_ms: int) -> None:
        """Note a use of the entity that it cannot see itself, such as a receiver that waits with credit."""
        self.used_ms = max(self.used_ms, now_ms)

    @property
    def idle_until_ms(self) -> int | None:
        """The time at which the entity may be deleted as idle; None: never, or not while messages are scheduled.

        A use of a subscription is a use of its topic too, but is noted only when this time has come: there may be many
        subscriptions.
        """
        idle_ms = self.description.auto_delete_on_idle_ms
        if idle_ms is None or idle_ms >= UNLIMITED_MS or self.scheduled_count:
            return None
        return self.accessed_ms + idle_ms

    # ── start, change, end ──

    def taker(self, box: int) -> Callable[[IndexRow], bool]:
        """Return `recover` for the rows of one box."""
        return self.main.recover

    def recover(self, row: IndexRow) -> bool:
        """Take a row of the store's index; False: its payload is missing. Overdue work is left to the next
        `run_due`."""
        return self.taker(row.box)(row)

    def recovered(self, now_ms: int) -> None:
        """Note that the index was read to its end."""
        for box in self.boxes:
            box.recovered()
        self.touch(now_ms)

    def update(self, description: EntityDescription, now_ms: int) -> None:
        """Take new settings: they apply from now on; locks and times to live that exist stay as they are."""
        self.description = description
        self._apply_settings()
        self.touch(now_ms)

    def close(self) -> None:
        """Stop handing out and writing messages, before `DropEntity` is written. Answers that are due still come.

        Rows written behind the drop would stay in the store for ever.
        """
        self.closed = True
        self._apply_settings()

    def reopen(self, now_ms: int) -> None:
        """Undo `close`: the drop could not be committed."""
        self.closed = False
        self.update(self.description, now_ms)

    def stop(self) -> None:
        """Stop `run_due`, before the store is closed; it then also does not go on by itself between two commits."""
        self.is_stopping = True

    def leave_budget(self) -> None:
        """Count against the budget no more: the namespace is closed."""
        self.moving.close()
        for box in self.boxes:
            box.leave_budget()

    def remains(self) -> Remains:
        """Return the rows to sweep once the drop is committed."""
        for box in self.boxes:
            box.leave_budget()
        count = sum(box.active_count + box.deferred_count + box.scheduled_count for box in self.boxes)
        row_bytes = sum(box.size_bytes for box in self.boxes) // (count + 1)
        return Remains(self.entity_id, self._drains(), row_bytes=row_bytes, payloads=self.payloads)

    def _drains(self) -> list[tuple[int, Drain]]:
        """Return where the row numbers of each box come from when the entity has been dropped."""
        return [(box.number, box.drain) for box in self.boxes]

    def shift(self, ms: int) -> None:
        """Move all that lasts, but no date, by a step of the clock."""
        self.used_ms += ms
        self.paused_until_ms += ms
        self.look_again_ms += ms
        for box in self.boxes:
            box.locks.shift(ms)
            box.accessed_ms += ms

    # ── telling others ──

    def announce(self, box: Box) -> None:
        """Tell the namespace that a message may have become available in the box."""
        if not self.closed:
            self._on_ready(self, box)

    def answer_later(self, answer: Any, done: Callable[[Any], None]) -> None:
        """Answer after the answers to earlier calls; a failing commit does not change this one."""
        self.store.after_commit(lambda error: done(answer))

    # ── due work: what a time causes, without a client ──

    def next_due_ms(self) -> int | None:
        """Return a time not later than the next work of `run_due`, perhaps earlier. Ask again after every call."""
        times = [at_ms for at_ms in self._due_times() if at_ms is not None]
        return max(min(times), self.paused_until_ms) if times else None

    def _due_times(self) -> list[int | None]:
        return []

    @property
    def is_catching_up(self) -> bool:
        """True while a batch of due work is being committed; the next one follows by itself."""
        return False

    def run_due(self, now_ms: int) -> None:
        """Do a bounded part of the work that is due."""
        if not self.may_run_due(now_ms):
            return
        try:
            self._do_due(now_ms)
        except StoreError:
            # The messages cannot be read now, which the store itself reports: they are unchanged, and are tried again.
            self.pause(now_ms)
        self.look_again_ms = now_ms + RETRY_PAUSE_MS

    def _do_due(self, now_ms: int) -> None:
        """Do due work. StoreError: messages cannot be read now."""

    def may_run_due(self, now_ms: int) -> bool:
        return not (self.closed or self.is_stopping or now_ms < self.paused_until_ms)

    def pause(self, now_ms: int) -> None:
        """Try due work again later, because it failed."""
        self.paused_until_ms = now_ms + RETRY_PAUSE_MS

    def may_move(self, box: Box, now_ms: int) -> bool:
        """Return whether a batch of messages may be moved now; otherwise due work goes on when there is room."""
        if self.moving.may_take:
            return True
        self.pause(now_ms)
        self.moving.when_free(partial(self._resume, box))
        return False

    def _resume(self, box: Box) -> None:
        self.paused_until_ms = 0
        self.announce(box)

    def go_on(self, box: Box, now_ms: int, error: StoreError | None) -> None:
        """Go on after a batch of due work: with the rest, or with a pause when the store failed."""
        if error is not None:
            self.pause(now_ms)
            return
        self.announce(box)
        self.run_due(now_ms)
