"""Changes to a namespace: one commit each, nothing half done, nothing lost between two of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from pairbus.auth.sas import SEND, KeyRing, TokenNotValid, sign
from pairbus.broker.description import (
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.namespace import Namespace
from pairbus.broker.store import PutEntity, Store
from pairbus.broker.store.memory import MemoryStore
from pairbus.errors import EntityExists, EntityNotFound, InvalidDescription, StoreFull
from pairbus.filters import CompiledRule, SqlFilter, compile_rule

pytestmark = pytest.mark.asyncio
FULL = StoreFull("no space left")


def open_namespace(store: Store) -> tuple[Namespace, list[str]]:
    namespace = Namespace(
        "contoso",
        store,
        KeyRing([]),
        loop=asyncio.get_running_loop(),
        now_ms=lambda: time.time_ns() // 1_000_000,
    )
    return namespace, namespace.recover()


@pytest_asyncio.fixture
async def store() -> MemoryStore:
    return MemoryStore(asyncio.get_running_loop().call_soon)


@pytest_asyncio.fixture
async def namespace(store: MemoryStore) -> AsyncIterator[Namespace]:
    found, _ = open_namespace(store)
    await found.create(TopicDescription("Events"))
    await found.create(SubscriptionDescription("events", "Audit"))
    await found.create(RuleDescription("EVENTS", "audit", "Red", filter=SqlFilter("a = 1")))
    yield found


def names(namespace: Namespace) -> list[str]:
    """Every entity below the topics, as its creator spelled it."""
    found = []
    for topic in namespace.catalog.topics.values():
        found.append(topic.path)
        for subscription in topic.subscriptions.values():
            found.append(subscription.path)
            found += [rule.description.path for rule in subscription.rules.values()]
    return found


ALL = [
    "Events",
    "Events/Subscriptions/Audit",
    "Events/Subscriptions/Audit/Rules/$Default",
    "Events/Subscriptions/Audit/Rules/Red",
]


async def test_names_of_parents_are_spelled_as_they_were_created(namespace: Namespace) -> None:
    """The spelling in the request does not matter."""
    assert names(namespace) == ALL


async def test_entities_are_recovered(namespace: Namespace, store: MemoryStore) -> None:
    """Entities of all kinds are recovered with their keys; ids go on where they were."""
    key = AuthorizationRule("app", (SEND,), "k1", "k2")
    await namespace.create(QueueDescription("orders", authorization=(key,)))
    again, damage = open_namespace(store)
    assert damage == []
    assert names(again) == ALL
    token = sign("sb://localhost/orders", "app", "k2", 4_000_000_000)
    assert again.keys.check(token, "orders", 0).rights == {SEND}
    await again.create(QueueDescription("more"))
    third, damage = open_namespace(store)
    assert (damage, sorted(third.catalog.queues)) == ([], ["more", "orders"])


async def test_orphans_are_told_and_left_alone(namespace: Namespace, store: MemoryStore) -> None:
    """A damaged store may have a rule without its subscription; the rest is served."""
    committed = asyncio.get_running_loop().create_future()
    store.write(PutEntity(900, SubscriptionDescription("lost", "s").to_json()))
    store.write(PutEntity(901, RuleDescription("events", "lost", "r").to_json()))
    store.write(PutEntity(902, '{"kind": "cube"}'))
    store.write(PutEntity(903, '{"kind": "rule", "name": "r"}'))
    store.after_commit(committed.set_result)
    assert await committed is None
    again, damage = open_namespace(store)
    assert names(again) == ALL
    assert len(damage) == 4
    for words in ("topic 'lost' does not exist", "subscription 'lost'", "the kind 'cube' is not known", "entity 903"):
        assert any(words in sentence and "left alone" in sentence for sentence in damage), (words, damage)


async def test_failed_creation_leaves_nothing(namespace: Namespace, store: MemoryStore) -> None:
    """The entity is neither in memory nor in the store, and its name can be created afterwards."""
    store.fail_next(FULL)
    with pytest.raises(StoreFull):
        await namespace.create(SubscriptionDescription("events", "new"))
    assert names(namespace) == ALL
    await namespace.create(SubscriptionDescription("events", "new"))
    assert len(names(namespace)) == len(ALL) + 2


async def test_failed_deletion_brings_the_family_back(namespace: Namespace, store: MemoryStore) -> None:
    """Topic, subscription and rules are open again, and messages are taken."""
    store.fail_next(FULL)
    with pytest.raises(StoreFull):
        await namespace.delete("events")
    assert names(namespace) == ALL
    topic = namespace.catalog.topic("events")
    assert not topic.closed
    assert not topic.subscriptions["audit"].closed
    again, _ = open_namespace(store)
    assert names(again) == ALL


async def test_failed_update_changes_nothing(namespace: Namespace, store: MemoryStore) -> None:
    """The old settings stay in force."""
    before = namespace.catalog.topic("events").description
    store.fail_next(FULL)
    with pytest.raises(StoreFull):
        await namespace.update(TopicDescription("events", max_size_mb=2048))
    assert namespace.catalog.topic("events").description == before


async def test_subscription_cannot_slip_into_a_topic_that_is_being_deleted(
    namespace: Namespace, store: MemoryStore
) -> None:
    """Changes to one topic happen one after the other, in the order of the calls."""
    results = await asyncio.gather(
        namespace.create(SubscriptionDescription("events", "before")),
        namespace.delete("events"),
        namespace.create(SubscriptionDescription("events", "behind")),
        namespace.create(RuleDescription("events", "audit", "behind")),
        return_exceptions=True,
    )
    assert isinstance(results[0], SubscriptionDescription)
    assert results[1] is None
    assert all(isinstance(result, EntityNotFound) for result in results[2:])
    again, damage = open_namespace(store)
    assert (names(again), damage) == ([], [])


async def test_one_of_two_creators_wins(namespace: Namespace) -> None:
    """A queue and a topic of one name included."""
    results = await asyncio.gather(
        namespace.create(QueueDescription("same")), namespace.create(TopicDescription("SAME")), return_exceptions=True
    )
    assert isinstance(results[0], QueueDescription)
    assert isinstance(results[1], EntityExists)


async def test_deleted_entity_gives_its_keys_up(namespace: Namespace) -> None:
    """A queue that is created again under the name has keys of its own."""
    key = AuthorizationRule("app", (SEND,), "k1", "k2")
    await namespace.create(TopicDescription("keyed", authorization=(key,)))
    token = sign("sb://localhost/keyed", "app", "k1", 4_000_000_000)
    assert namespace.keys.check(token, "keyed/subscriptions/s", 0)
    await namespace.delete("keyed")
    with pytest.raises(TokenNotValid):
        namespace.keys.check(token, "keyed", 0)


async def test_update_of_another_kind_is_refused(namespace: Namespace) -> None:
    """The name alone does not make a topic a queue."""
    with pytest.raises(InvalidDescription, match="'Events' is a topic, not a queue"):
        await namespace.update(QueueDescription("events"))


async def test_new_rule_compiles_no_other(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription may have thousands of rules; the next send must not wait for all of them."""
    compiled: list[str] = []

    def counted(name: str, *parts: object) -> CompiledRule:
        compiled.append(name)
        return compile_rule(name, *parts)  # type: ignore[arg-type]

    monkeypatch.setattr("pairbus.broker.entities.subscription.compile_rule", counted)
    audit = namespace.catalog.subscription("events", "audit")
    assert audit.compiled is audit.compiled
    assert compiled == ["$Default", "Red"]
    await namespace.create(RuleDescription("events", "audit", "Blue", filter=SqlFilter("a = 2")))
    await namespace.delete("events/subscriptions/audit/rules/$default")
    assert repr(audit.compiled) == "<Rules Red Blue>"
    assert compiled == ["$Default", "Red", "Blue"]
    await namespace.update(RuleDescription("events", "audit", "red", filter=SqlFilter("a = 3")))
    assert repr(audit.compiled) == "<Rules Red Blue>"
    assert compiled == ["$Default", "Red", "Blue", "Red"]
