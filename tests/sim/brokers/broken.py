"""Ways to be wrong, each a small change of the genuine broker, to see that the simulation notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from pairbus.broker.boxes.box import Box, deletion
from pairbus.broker.boxes.holds import Hold, Holder, Holds
from pairbus.broker.boxes.locks import Lock, Locks
from pairbus.broker.boxes.sessions import MessageSession
from pairbus.broker.entities import receivable
from pairbus.broker.entities.destination import Destination
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.duplicates import DuplicateWindow
from pairbus.broker.entities.publication import Publication
from pairbus.broker.entities.session_service import SessionService
from pairbus.broker.entities.subscription import Subscription
from pairbus.broker.entities.subscription_index import SubscriptionIndex
from pairbus.broker.store import Delete, Done, StoredMessage
from pairbus.errors import StoreError
from pairbus.filters import MessageView


@contextmanager
def acknowledges_first() -> Iterator[None]:
    """Tells a sender that its message is stored when it is written, and not yet committed."""
    genuine = Destination.send

    def send(entity: Destination, drafts: Sequence[Draft], now_ms: int, done: Callable[[Any], None]) -> None:
        genuine(entity, drafts, now_ms, lambda refusal: None)
        done(None)

    with patch.object(Destination, "send", send):
        yield


@contextmanager
def locks_twice() -> Iterator[None]:
    """Tells a receiver that its lock is renewed, and lets it end when it would have ended."""

    def renew(locks: Locks, lock: Lock, now_ms: int) -> int:
        return now_ms + locks.duration_ms

    with patch.object(Locks, "renew", renew):
        yield


@contextmanager
def restores_settled() -> Iterator[None]:
    """Completes a message that was delivered before in memory alone: the next start finds it again."""

    def forgetful(box: Box, messages: Sequence[StoredMessage]) -> Delete:
        return deletion(box, [message for message in messages if not message.delivery_count])

    with patch.object(receivable, "deletion", forgetful):
        yield


@contextmanager
def forwards_in_two_commits() -> Iterator[None]:
    """Deletes a forwarded message in its source when its destination has committed it."""

    def forward(entity: Destination, drafts: Sequence[Draft], now_ms: int, leaving: Delete, left: Done) -> None:
        store = entity.store

        def sent(error: StoreError | None) -> None:
            if error is None:
                store.write(leaving)
            left(error)

        entity.send(drafts, now_ms, lambda refusal: None)
        store.after_commit(sent)

    with patch.object(Destination, "forward", forward):
        yield


@contextmanager
def forgets_a_subscription() -> Iterator[None]:
    """Makes one copy less of a message that more than two subscriptions get."""
    genuine = SubscriptionIndex.candidates

    def candidates(index: SubscriptionIndex, view: MessageView) -> list[Subscription]:
        return list(genuine(index, view))[:2]

    with patch.object(SubscriptionIndex, "candidates", candidates):
        yield


@contextmanager
def publishes_in_two_commits() -> Iterator[None]:
    """Writes the copies of the last subscription when those of the others are committed."""
    genuine = Publication.write

    def write(publication: Publication) -> None:
        store, late = publication._store, list(publication._copies)[-1:] if len(publication._copies) > 1 else []
        kept = {box: publication._copies.pop(box) for box in late}
        genuine(publication)
        last = Publication(publication._topic_id, store)
        last._copies = kept

        def go_on(error: StoreError | None) -> None:
            if error is None:
                genuine(last)
                store.after_commit(lambda error: last.committed())

        if kept:
            store.after_commit(go_on)

    with patch.object(Publication, "write", write):
        yield


@contextmanager
def answers_states_first() -> Iterator[None]:
    """Tells a receiver that the state of its session is set before the commit."""
    genuine = SessionService.set_state

    def set_state(service: SessionService, hold: Hold, state: bytes | None, now_ms: int, done: Any) -> None:
        genuine(service, hold, state, now_ms, lambda refusal: None)
        done(None)

    with patch.object(SessionService, "set_state", set_state):
        yield


@contextmanager
def overtakes() -> Iterator[None]:
    """Gives a session away while messages of it are on their way back."""
    with patch.object(MessageSession, "pending", 0):
        yield


@contextmanager
def gives_sessions_twice() -> Iterator[None]:
    """Gives a session by its name to whoever asks."""

    def take(holds: Holds, session_id: str, holder: Holder, now_ms: int) -> Hold:
        return holds._hold(holds._sessions.make(session_id), holder, now_ms)

    with patch.object(Holds, "take", take):
        yield


@contextmanager
def forgets_ids() -> Iterator[None]:
    """Starts without the ids of messages that were accepted before."""
    with patch.object(DuplicateWindow, "recover", lambda window, remembered: None):
        yield


@contextmanager
def miscounts() -> Iterator[None]:
    """Counts a message that was completed as a deferred one as if it were still there."""
    genuine = Box.forget

    def forget(box: Box, messages: Sequence[StoredMessage]) -> None:
        before = box.deferred_count
        genuine(box, messages)
        box.deferred_count = before

    with patch.object(Box, "forget", forget):
        yield


Broken = Callable[[], AbstractContextManager[None]]

BROKEN: dict[str, tuple[Broken, str, int]] = {
    "acknowledges before the commit": (acknowledges_first, "lost", 0),
    "gives a lock twice": (locks_twice, "locked twice", 64),
    "restores a settled message": (restores_settled, "restored", 11),
    "forwards in two commits": (forwards_in_two_commits, "duplicate", 6),
    "forgets a subscription": (forgets_a_subscription, "lost", 3),
    "publishes in two commits": (publishes_in_two_commits, "in part", 75),
    "answers states before the commit": (answers_states_first, "wrong state", 3),
    "overtakes in a session": (overtakes, "order", 84),
    "gives a session twice": (gives_sessions_twice, "two holders", 1),
    "forgets ids at a start": (forgets_ids, "duplicate", 2),
    "miscounts deferred messages": (miscounts, "miscounted", 2),
}
"A wrong broker, the promise that it breaks, and the first seed that finds it."
