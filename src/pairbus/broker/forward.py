"""Forwarding: messages that become active in one entity, or dead there, go on to another queue or topic.

A forwarder takes messages like a receiver and sends them to their destination. Leaving the source and entering the
destination is one commit, so a kill leaves a message in exactly one of them: in the source, from which the next start
forwards it, or in the destination.

A message that cannot be forwarded is dead-lettered in the source. Reasons: the destination is missing, switched off or
full; the message was forwarded too often; it has no session id for a destination that needs one. A dead letter that
cannot be forwarded stays where it is, and is tried again unless it was forwarded too often. The dead letters behind it
are forwarded all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pairbus.amqp.errors import NOT_FOUND, RESOURCE_LIMIT_EXCEEDED
from pairbus.amqp.types import encode_string, encode_symbol
from pairbus.broker.boxes.box import Box, deletion
from pairbus.broker.budget import Share
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.publication import SESSION_MISSING, has_session_id
from pairbus.broker.refusal import ENTITY_DISABLED, Refusal, entity_not_found
from pairbus.broker.store import Store, StoredMessage
from pairbus.broker.wire.deliveries import with_patch, without_pair
from pairbus.broker.wire.messages import DEAD_LETTER_SOURCE
from pairbus.errors import StoreError
from pairbus.filters import MessageView

if TYPE_CHECKING:
    from pairbus.broker.entities.queue import Queue
    from pairbus.broker.entities.receivable import Receivable
    from pairbus.broker.entities.topic import Topic

logger = logging.getLogger("pairbus.broker")

HOPS_MAX = 4
BATCH_MAX = 100
BATCH_BYTES = 2 << 20  # a batch is in memory until its commit; the message that reaches this size is its last
PAUSE_S = 1.0  # before forwarding is tried again after the store failed, or a dead letter found no destination
TOO_MANY_HOPS = "MaxTransferHopCountExceeded"
_REASONS = {
    RESOURCE_LIMIT_EXCEEDED: "QuotaExceeded",
    ENTITY_DISABLED: "MessagingEntityDisabled",
    NOT_FOUND: "MessagingEntityNotFound",
}
_SOURCE_KEY = encode_symbol(DEAD_LETTER_SOURCE)


class BoxForwarder:
    """Moves the messages of one box to one destination."""

    def __init__(
        self,
        source: Receivable,
        box: Box,
        path: str,
        store: Store,
        *,
        find: Callable[[str], Queue | Topic | None],
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        moving: Share,
    ) -> None:
        """Make a forwarder. `path` names the destination, which `find` looks up; `moving` is where a batch counts."""
        self._moving = moving
        self.source = source
        self.box = box
        self.path = path
        self._store = store
        self._find = find
        self._loop = loop
        self._now_ms = now_ms
        self._is_scheduled = self._is_busy = self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._tries_again = False
        "True when messages are to be looked for after the pause, not only the destination."
        # Rows of dead letters that are passed over, no more than the box has: about 100 bytes each.
        self._tired: set[int] = set()
        "Rows of dead letters that were forwarded too often."
        self._without_session: set[int] = set()
        "Rows of dead letters without a session id, as long as the destination requires sessions."
        self._requires_session: Queue | Topic | None = None
        "Destination that refused those rows."

    def __repr__(self) -> str:
        return f"<Forwarder {self.source.path} to {self.path}>"

    def wake(self) -> None:
        """Look for messages soon. Cheap, and safe to call from anywhere."""
        if not (self._is_scheduled or self._is_busy or self._is_over):
            self._is_scheduled = True
            self._loop.call_soon(self.run)

    @property
    def is_working(self) -> bool:
        """True while a batch is being forwarded, or is about to be."""
        return self._is_scheduled or self._is_busy

    def stop(self) -> None:
        """Stop forwarding; a batch that is being committed is still told to the source."""
        self._is_over = True
        self._moving.close()
        if self._timer is not None:
            self._timer.cancel()

    def run(self) -> None:
        """Forward one batch; the next follows its commit."""
        self._is_scheduled = False
        if self._is_busy or self._is_over or self.source.closed:
            return
        if not self._moving.may_take:
            self._moving.when_free(self.wake)
            return
        now_ms = self._now_ms()
        try:
            messages = self._gather(now_ms)
        except StoreError as error:
            logger.error("%s: messages cannot be read, the next try is in %s s: %s", self, PAUSE_S, error)
            self._pause()
            return
        if not messages:
            return
        tired = [message for message in messages if message.hops >= HOPS_MAX]
        rested = [message for message in messages if message.hops < HOPS_MAX]
        if tired:
            self._refuse(tired, TOO_MANY_HOPS, f"The message was forwarded {HOPS_MAX} times already.", now_ms)
        if rested:
            self._forward(rested, now_ms)

    def _gather(self, now_ms: int) -> list[StoredMessage]:
        """Withdraw the messages of one batch. StoreError: they cannot be read now, and still wait."""
        passed_count = len(self._tired) + len(self._without_session)
        if not passed_count:
            return self.box.withdraw(BATCH_MAX, now_ms, size_max=BATCH_BYTES)
        if not self.box.receivable:
            return []
        waiting = self.box.waiting_numbers(BATCH_MAX + passed_count)
        passed = self._passed(waiting, is_all=len(waiting) < BATCH_MAX + passed_count)
        numbers = [n for n in waiting if n not in passed][:BATCH_MAX]
        messages: list[StoredMessage] = []
        size = 0
        try:
            while numbers and size < BATCH_BYTES:
                count = self.box.chunk_size()
                chunk = self.box.withdraw_these(numbers[:count])
                messages += chunk
                size += sum(message.size for message in chunk)
                reached = chunk[-1].n if chunk else numbers[:count][-1]
                numbers = [n for n in numbers if n > reached]
        except StoreError:
            self._give_back(messages)
            raise
        return messages

    def _passed(self, waiting: list[int], *, is_all: bool) -> set[int]:
        """Return the rows to pass over, and forget those that have left the box.

        `waiting` are the lowest numbers that wait; a number below the last of them that is not there has left.
        """
        seen = set(waiting)
        for rows in (self._tired, self._without_session):
            rows.difference_update([n for n in rows if n not in seen and (is_all or n < waiting[-1])])
        return self._tired | self._without_session

    def _forward(self, messages: list[StoredMessage], now_ms: int) -> None:
        try:
            destination = self._destination()
        except Refusal as refusal:
            reason = _REASONS.get(refusal.condition, refusal.condition)
            self._refuse(messages, reason, f"The message could not be forwarded: {refusal.description}", now_ms)
            return
        except BaseException:
            self._put_back(messages)
            raise
        if getattr(destination.description, "requires_session", False):
            messages = self._with_session(messages, destination, now_ms)
            if not messages:
                return
        try:
            drafts = [self._draft(message) for message in messages]
            is_claimed = destination.is_claimed(drafts)
            if not is_claimed:
                leaving = deletion(self.box, messages)
                self._is_busy = True
                self._moving.take(sum([message.size for message in messages]))
                destination.forward(drafts, now_ms, leaving, partial(self._forwarded, messages))
        except BaseException:
            if self._is_busy:
                self._moving.give(sum([message.size for message in messages]))
            self._is_busy = False
            self._put_back(messages)
            raise
        if is_claimed:  # whether one of them is a duplicate is known after the next commit
            self._give_back(messages)
            self._store.after_commit(lambda error: self.wake())

    def _with_session(
        self, messages: list[StoredMessage], destination: Queue | Topic, now_ms: int
    ) -> list[StoredMessage]:
        """Return the messages that name a session, and refuse the others."""
        with_id: list[StoredMessage] = []
        without_id: list[StoredMessage] = []
        for message in messages:
            has_id = has_session_id(message.session_id, MessageView(message.body))
            (with_id if has_id else without_id).append(message)
        if without_id:
            text = f"The message has no session id, and '{destination.path}' requires sessions."
            self._requires_session = destination
            self._refuse(without_id, SESSION_MISSING, text, now_ms)
        return with_id

    def _destination(self) -> Queue | Topic:
        """Return the destination, if it takes messages now."""
        destination = self._find(self.path)
        if destination is None:
            raise entity_not_found(self.path)
        destination.check_room()
        return destination

    def _draft(self, message: StoredMessage) -> Draft:
        """Return the message as it enters its destination, with the changes that settlements made."""
        annotations = message.annotations
        if self.box is self.source.dead:
            annotations = without_pair(annotations, DEAD_LETTER_SOURCE) + _SOURCE_KEY + encode_string(self.source.path)
        return Draft(
            with_patch(message.body, message.patch) if message.patch else message.body,
            annotations,
            message.message_id,
            message.ttl_ms,
            session_id=message.session_id,
            hops=message.hops + 1,
            origin_seq=message.origin_seq or message.seq,
            payload=0 if message.patch else message.payload,
        )

    def _forwarded(self, messages: list[StoredMessage], error: StoreError | None) -> None:
        self._is_busy = False
        self._moving.give(sum([message.size for message in messages]))
        if error is not None:
            self._give_back(messages)
            self._pause()
            return
        for message in messages:
            self.box.forget((message,))
        self.box.trim()
        self.wake()

    # ── messages that cannot be forwarded ──

    def _refuse(self, messages: list[StoredMessage], reason: str, text: str, now_ms: int) -> None:
        """Dead-letter messages in the source; dead letters stay where they are."""
        if self.box is not self.source.dead:
            logger.warning("%s: %d messages are dead-lettered: %s", self, len(messages), text)
            self.source.dead_letter(messages, reason, text, self.wake)
            return
        self._give_back(messages)
        if reason == TOO_MANY_HOPS:
            self._tired.update(message.n for message in messages)
            self.wake()  # for the dead letters behind these
            return
        logger.warning("%s: %d dead letters wait: %s", self, len(messages), text)
        if reason == SESSION_MISSING:
            self._without_session.update(message.n for message in messages)
            self._start_timer()
            self.wake()
        else:
            self._pause()

    def _put_back(self, messages: list[StoredMessage]) -> None:
        """Take messages back after a bug, which the loop reports: nothing was written, and they are tried again."""
        self._give_back(messages)
        self._pause()

    def _give_back(self, messages: list[StoredMessage]) -> None:
        for message in messages:
            self.box.give_back(message)

    def _pause(self) -> None:
        self._tries_again = True
        self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(PAUSE_S, self._pause_is_over)

    def _pause_is_over(self) -> None:
        """Try again, unless the dead letters without a session id still have the same destination.

        To pass over many of them takes long, so it is not done in vain once a second.
        """
        self._timer = None
        tries_again, self._tries_again = self._tries_again, False
        if self._without_session:
            if self._find(self.path) is self._requires_session:
                self._start_timer()
            else:
                self._without_session.clear()
                tries_again = True
        if tries_again:
            self.wake()
