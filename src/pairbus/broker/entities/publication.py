"""Publishes messages that are sent to a topic: copies for its subscriptions, written together.

Copies that no action changed share a payload; if there is only one such copy, it has the body itself. A large body is
always a payload (see boxes/payloads.py).
"""

from __future__ import annotations

from typing import NamedTuple

from pairbus.broker.boxes.box import Box
from pairbus.broker.boxes.payloads import LARGE_BODY_BYTES
from pairbus.broker.entities.receivable import reason
from pairbus.broker.entities.subscription import Subscription
from pairbus.broker.entities.subscription_index import SubscriptionIndex
from pairbus.broker.store import Insert, InsertPayload, Store, StoredMessage
from pairbus.filters import Changed, FilterEvaluationError, MessageView
from pairbus.filters.view import SESSION_ID

FILTER_FAILED = "FilterEvaluationException"
SESSION_MISSING = "Session ID is null"


class SubscriptionCopy(NamedTuple):
    """One copy that a subscription gets."""

    subscription: Subscription
    changed: Changed | None = None
    "Copy as an action changed it; None: the message as it was sent."
    patch: bytes = b""
    "Reason why the copy is dead-lettered at once; empty: it is not."


class Publication:
    """The copies of one or several messages, from their writing to the end of the commit."""

    def __init__(self, topic_id: int, store: Store) -> None:
        self._topic_id = topic_id
        self._store = store
        self.scheduled: list[StoredMessage] = []
        "Messages of the same send that wait in the topic."
        self.payloads: list[InsertPayload] = []
        self._copies: dict[Subscription, list[StoredMessage]] = {}
        "Copies for each subscription, in the order of their sequence numbers."
        self._written: list[tuple[Subscription, Box, list[StoredMessage]]] = []
        self.size = 0
        "Bytes that the copies take, each payload counted once."

    def add(self, message: StoredMessage, index: SubscriptionIndex, now_ms: int) -> None:
        """Evaluate the rules of the subscriptions that may select a message of the topic, and make the copies.

        Nothing is written yet, so that a failure here leaves nothing in the group.
        """
        view = MessageView(
            message.body,
            message.annotations,
            ttl_ms=message.ttl_ms,
            enqueued_ms=now_ms,
            seq=message.seq,
        )
        candidates = index.candidates(view)
        outcomes = [outcome for each in candidates for outcome in outcomes_of(each, view, message.session_id)]
        payload = 0
        unchanged_count = sum(outcome.changed is None for outcome in outcomes)
        if unchanged_count > 1 or (unchanged_count and len(message.body) >= LARGE_BODY_BYTES):
            payload = self._payload_of(message.body)
        for outcome in outcomes:
            self._copy(message, outcome, payload, now_ms)

    def _payload_of(self, body: bytes) -> int:
        payload = self._store.number()
        self.payloads.append(InsertPayload(payload, self._topic_id, body))
        self.size += len(body)
        return payload

    def _copy(self, message: StoredMessage, outcome: SubscriptionCopy, payload: int, now_ms: int) -> None:
        subscription, changed, patch = outcome
        if changed is not None:
            payload = self._payload_of(changed.body) if len(changed.body) >= LARGE_BODY_BYTES else 0
        ttl_ms = subscription.ttl_ms(message.ttl_ms if changed is None else changed.ttl_ms or 0)
        copy = StoredMessage(
            subscription.next_seq(),
            message.body if changed is None else changed.body,
            annotations=message.annotations if changed is None else changed.annotations,
            message_id=message.message_id if changed is None else changed.message_id,
            enqueued_ms=now_ms,
            ttl_ms=ttl_ms,
            expires_ms=now_ms + ttl_ms if ttl_ms and not patch else 0,
            patch=patch,
            payload=payload,
            origin_seq=message.origin_seq or message.seq,
            hops=message.hops,
            session_id=message.session_id if changed is None else changed.session_id or "",
        )
        self._copies.setdefault(subscription, []).append(copy)
        self.size += copy.size - (len(copy.body) if copy.payload else 0)

    def write(self) -> None:
        """Write payloads and copies. Copies of one subscription get consecutive numbers: they are read and deleted
        together. Both of its boxes are numbered as one, because a message keeps its number when it is dead-lettered."""
        for payload in self.payloads:
            self._store.write(payload)
        for subscription, copies in self._copies.items():
            first = self._store.number(len(copies))
            for n, copy in enumerate(copies, first):
                copy.n = n
            dead = [copy for copy in copies if copy.patch]
            live = [copy for copy in copies if not copy.patch] if dead else copies
            for box, part in ((subscription.main, live), (subscription.dead, dead)):
                if part:
                    self._store.write(Insert(box.number, part))
                    self._written.append((subscription, box, part))

    def committed(self) -> None:
        for subscription, box, copies in self._written:
            subscription.take_in(box, copies)


def outcomes_of(subscription: Subscription, view: MessageView, session_id: str) -> list[SubscriptionCopy]:
    """Return the copies that one subscription gets."""
    settings = subscription.description
    try:
        copies = subscription.compiled.evaluate(view)
    except FilterEvaluationError as error:
        if not settings.dead_letter_on_filter_error:
            return []
        return [SubscriptionCopy(subscription, None, reason(FILTER_FAILED, str(error)))]
    if not settings.requires_session:
        return [SubscriptionCopy(subscription, copy.changed) for copy in copies]
    outcomes = []
    for copy in copies:
        changed = copy.changed
        has_id = has_session_id(session_id, view) if changed is None else changed.session_id is not None
        text = "The message has no session id, and the subscription requires sessions."
        outcomes.append(SubscriptionCopy(subscription, changed, b"" if has_id else reason(SESSION_MISSING, text)))
    return outcomes


def has_session_id(session_id: str, view: MessageView) -> bool:
    """Return whether a message that is stored with this session id names a session.

    The empty text is a session like any other. It is stored like no session id: only the message tells these apart.
    """
    if session_id:
        return True
    try:
        return view.text(SESSION_ID) is not None
    except FilterEvaluationError:  # properties that nobody can read name no session
        return False
