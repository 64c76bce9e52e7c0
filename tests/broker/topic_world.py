"""A topic with subscriptions, and queues beside it, on the memory store with a clock that is moved by hand."""

from __future__ import annotations

from typing import Any

from pairbus.amqp.message import APPLICATION_PROPERTIES, PROPERTIES, section
from pairbus.amqp.types import encode, encode_string, list_of
from pairbus.broker.boxes.box import Box, Lock
from pairbus.broker.boxes.payloads import Payloads
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.description import RuleDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.entity import NamespaceParts
from pairbus.broker.entities.subscription import Rule, Subscription
from pairbus.broker.entities.topic import Topic
from pairbus.broker.store import PutEntity, entity_of
from pairbus.broker.store.memory import MemoryStore
from pairbus.filters import Filter, SqlAction, SqlFilter, TrueFilter
from pairbus.filters.view import SESSION_ID
from tests.broker.locking import lock_next
from tests.broker.queue_world import Answer

TOPIC_ID = 1


def bare_message(text: str, session_id: str | None = None, **properties: object) -> bytes:
    """A bare message: an id, a session id, application properties, data."""
    data = text.encode()
    session = [] if session_id is None else [*[encode(None)] * (SESSION_ID - 1), encode_string(session_id)]
    return (
        section(PROPERTIES, list_of([encode_string(text), *session]))
        + (section(APPLICATION_PROPERTIES, encode(properties)) if properties else b"")
        + b"\x00\x53\x75\xa0"
        + bytes((len(data),))
        + data
    )


def draft(
    text: str,
    *,
    scheduled_ms: int = 0,
    ttl_ms: int = 0,
    message_id: str = "",
    session_id: str | None = None,
    **properties: object,
) -> Draft:
    return Draft(
        bare_message(text, session_id, **properties),
        message_id=message_id or text,
        scheduled_ms=scheduled_ms,
        ttl_ms=ttl_ms,
        session_id=session_id,
    )


def text_of(body: bytes) -> str:
    """The data of a bare message made here."""
    at = body.rindex(b"\x00\x53\x75\xa0")
    return body[at + 5 :].decode()


class TopicWorld:
    """`subscriptions`: name → settings; each has the rule `$Default` unless `rules` has others for it."""

    def __init__(
        self,
        subscriptions: dict[str, dict[str, Any]],
        rules: dict[str, list[tuple[Filter, SqlAction | None]]] | None = None,
        **settings: Any,
    ) -> None:
        self.now = 1_000_000
        self.store = MemoryStore()
        self.ready: list[Box] = []
        self.description = TopicDescription("prices", **settings)
        self._subscriptions = {
            name: SubscriptionDescription("prices", name, **each) for name, each in subscriptions.items()
        }
        self._rules = rules or {}
        self.store.write(PutEntity(TOPIC_ID, self.description.to_json()))
        for number, each in enumerate(self._subscriptions.values(), TOPIC_ID + 1):
            self.store.write(PutEntity(number, each.to_json()))
        self.store.commit()
        self._open({})

    def _open(self, last_seqs: dict[int, int]) -> None:
        self.payloads = Payloads()
        parts = NamespaceParts(self.store, self.payloads, MemoryBudget(), lambda entity, box: self.ready.append(box))
        last_seq = last_seqs.get(TOPIC_ID, 0)
        self.topic = Topic(TOPIC_ID, self.description, parts, now_ms=self.now, last_seq=last_seq)
        for number, (name, description) in enumerate(self._subscriptions.items(), TOPIC_ID + 1):
            last_seq = last_seqs.get(number, 0)
            subscription = Subscription(number, description, parts, now_ms=self.now, last_seq=last_seq)
            self.topic.index.add(subscription)
            for at, (found, action) in enumerate(self._rules.get(name, [(TrueFilter(), None)])):
                subscription.put_rule(Rule(0, RuleDescription("prices", name, f"rule{at}", found, action)))

    def restart(self) -> None:
        """As after a kill: what was committed is there, locks and everything uncommitted are not."""
        self.store._writes.clear()
        self.store._callbacks.clear()
        recovered = self.store.recover()
        self._open({each.entity_id: each.last_seq for each in recovered.entities})
        self.payloads.recover(self.store.payloads())
        holders: dict[int, Topic | Subscription] = {TOPIC_ID: self.topic}
        holders |= {each.entity_id: each for each in self.topic.subscriptions.values()}
        for row in self.store.index():
            assert holders[entity_of(row.box)].recover(row)
        for holder in holders.values():
            holder.recovered(self.now)
        self.settle_down()

    def settle_down(self) -> None:
        """Commit and do what is due until nothing is left to do."""
        for _ in range(1000):
            self.store.commit()
            holders: list[Topic | Subscription] = [self.topic, *self.topic.subscriptions.values()]
            due = [each for each in holders if (at := each.next_due_ms()) is not None and at <= self.now]
            for holder in due:
                holder.run_due(self.now)
            if not due and not self.store._callbacks and not self.store._writes:
                return
        raise AssertionError("due work does not end")

    def pass_ms(self, ms: int) -> None:
        self.now += ms
        self.settle_down()

    def offer(self, *drafts: Draft) -> Answer:
        answer = Answer()
        self.topic.send(drafts, self.now, answer)
        return answer

    def send(self, *drafts: Draft) -> None:
        answer = self.offer(*drafts)
        self.store.commit()
        assert answer.value is None

    def __getitem__(self, name: str) -> Subscription:
        return self.topic.subscriptions[name]

    def locks(self, name: str, *, dead: bool = False) -> list[Lock]:
        """Lock everything that waits in a subscription."""
        box = self[name].dead if dead else self[name].main
        found = []
        while (lock := lock_next(box, self.now)) is not None:
            found.append(lock)
        return found

    def texts(self, name: str, *, dead: bool = False) -> list[str]:
        return [text_of(lock.message.body) for lock in self.locks(name, dead=dead)]

    def complete(self, name: str, *locks: Lock) -> None:
        answer = Answer()
        self[name].complete_many(self[name].main, [lock.token for lock in locks], self.now, answer)
        self.store.commit()
        assert answer.value == ([], None)

    def stored_bytes(self) -> int:
        """Add up the bytes that the topic occupies: each payload once."""
        return sum(row.size for row in self.store.index()) + sum(size for _, _, size in self.store.payloads())


def sql(text: str) -> SqlFilter:
    return SqlFilter(text)
