"""The writer of a namespace's catalog: entities are created, updated and deleted, each change in one commit.

Requests for changes come over HTTP (`admin/`, as administration clients speak it), over AMQP to `$management`
(`management/`, which changes rules, and does much else), from the configuration and from idle entities.

Changes to one queue, or to one topic and all that belongs to it, happen one after the other: a subscription is never
created in a topic whose deletion is being written. A change goes on when its caller is cancelled: memory must agree
with the written data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from pairbus.broker.admin import D
from pairbus.broker.catalog import Catalog, CatalogEntity
from pairbus.broker.description import (
    AnyDescription,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    path_key,
)
from pairbus.broker.description.rule import DEFAULT_RULE
from pairbus.broker.entities.entity import Entity, EntityDescription
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.subscription import Rule, Subscription
from pairbus.broker.entities.topic import Topic
from pairbus.broker.store import DropEntity, PutEntity, Store
from pairbus.broker.wire.address import parse_entity
from pairbus.errors import EntityExists, InvalidDescription, StoreError
from pairbus.filters import CorrelationFilter

logger = logging.getLogger("pairbus.broker")

_T = TypeVar("_T")
SUBSCRIPTIONS_MAX = 2_000  # in one topic
SQL_FILTERS_MAX = 2_000  # in one topic, over all subscriptions; true and false filters count too
CORRELATION_FILTERS_MAX = 100_000


class Hooks(Protocol):
    """Part of the namespace in a change: makes objects, and tells links and timers."""

    def make(self, entity_id: int, description: EntityDescription) -> Entity: ...
    def added(self, entity: CatalogEntity) -> None: ...
    def updated(self, entity: CatalogEntity) -> None: ...
    def removed(self, entity: CatalogEntity) -> None: ...
    def deleted(self, entity: CatalogEntity) -> None: ...


class CatalogWriter:
    """The only writer of the catalog and of descriptions."""

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        store: Store,
        hooks: Hooks,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
    ) -> None:
        self.last_id = 0
        "Highest id ever given to an entity."
        self.planned: frozenset[str] = frozenset()
        "Keys of queues and topics that are about to be created: entities may forward to them already."
        self._name = name
        self._catalog = catalog
        self._store = store
        self._hooks = hooks
        self._loop = loop
        self._now_ms = now_ms
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        "Lock for each queue or topic that is being changed."
        self._changes: set[asyncio.Task[Any]] = set()

    async def create(self, description: D) -> D:
        if isinstance(description, SubscriptionDescription):
            default = RuleDescription(description.topic, description.name, DEFAULT_RULE)
            return await self.to_its_end(self._create(description, [default]))
        return await self.to_its_end(self._create(description, []))

    async def create_subscription(
        self, description: SubscriptionDescription, rules: Sequence[RuleDescription]
    ) -> SubscriptionDescription:
        return await self.to_its_end(self._create(description, rules))

    async def update(self, description: D) -> D:
        return await self.to_its_end(self._update(description))

    async def delete(self, path: str) -> None:
        await self.to_its_end(self._delete(path))

    async def delete_all(self) -> None:
        """Delete every entity in one commit; StoreError: no entity has changed."""
        await self.to_its_end(self._delete_all())

    def to_its_end(self, change: Coroutine[Any, Any, _T]) -> asyncio.Future[_T]:
        """Run a change in its own task, which no caller can cancel."""
        task = self._loop.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return asyncio.shield(task)

    def _turn(self, path: str) -> asyncio.Lock:
        return self._turn_of(_root(path))

    def _turn_of(self, key: str) -> asyncio.Lock:
        lock = self._turns.get(key)
        if lock is None:
            lock = self._turns[key] = asyncio.Lock()
        return lock

    @asynccontextmanager
    async def all_turns(self) -> AsyncIterator[None]:
        """Keep every queue and topic from being changed; locks are taken in one order, so no deadlock is possible."""
        async with AsyncExitStack() as stack:
            # Each once, because the queue `a/subscriptions` has the turn of `a`.
            for key in sorted({_root(path) for path in (*self._catalog.queues, *self._catalog.topics)}):
                await stack.enter_async_context(self._turn_of(key))
            yield

    # ── create ──

    async def _create(self, description: D, rules: Sequence[RuleDescription]) -> D:
        async with self._turn(description.path):
            # Before the settings are looked at: clients that lose the race to create an entity expect this error.
            if self._catalog.find(description.path) is not None:
                raise EntityExists(f"{description.KIND} '{description.path}' exists already")
            now_ms = self._now_ms()
            description = replace(
                description.checked(), **self._parents(description), created_ms=now_ms, updated_ms=now_ms
            )
            self._check_destinations(description)
            new = self._make(description, rules, now_ms)
            for entity in new:
                self._store.write(PutEntity(entity.entity_id, entity.description.to_json()))
            await self.commit()
            for entity in new:
                self.add(entity)
        logger.info("%s: %s '%s' created", self._name, description.KIND, description.path)
        return description

    def _parents(self, description: AnyDescription) -> dict[str, Any]:
        """Return the names of the entities to which this one belongs, as their creators spelled them, or
        EntityNotFound."""
        match description:
            case SubscriptionDescription():
                return {"topic": self._catalog.topic(description.topic).path}
            case RuleDescription():
                parent = self._catalog.subscription(description.topic, description.subscription).description
                return {"topic": parent.topic, "subscription": parent.name}
        return {}

    def _make(self, description: AnyDescription, rules: Sequence[RuleDescription], now_ms: int) -> list[CatalogEntity]:
        """Make the object for a new entity and, for a subscription, those of its first rules."""
        match description:
            case QueueDescription() | TopicDescription():
                return [self._hooks.make(self.next_id(), description)]
            case RuleDescription():
                self._check_filter_count([description])
                return [Rule(self.next_id(), description)]
            case SubscriptionDescription():
                topic = self._catalog.topic(description.topic)
                if len(topic.subscriptions) >= SUBSCRIPTIONS_MAX:
                    raise InvalidDescription(f"topic '{topic.path}' has {SUBSCRIPTIONS_MAX} subscriptions already")
                subscription = self._hooks.make(self.next_id(), description)
                parents: dict[str, Any] = {"topic": topic.path, "subscription": description.name}
                checked = [replace(rule.checked(), **parents, created_ms=now_ms, updated_ms=now_ms) for rule in rules]
                if len({rule.name.lower() for rule in checked}) < len(checked):
                    raise InvalidDescription(f"two rules of '{description.path}' have one name")
                self._check_filter_count(checked)
                return [subscription, *[Rule(self.next_id(), rule) for rule in checked]]

    def _check_filter_count(self, rules: Sequence[RuleDescription]) -> None:
        if not rules:
            return
        sql, correlation = self._catalog.topic(rules[0].topic).filter_counts()
        new_correlation = sum(isinstance(rule.filter, CorrelationFilter) for rule in rules)
        if correlation + new_correlation > CORRELATION_FILTERS_MAX:
            raise InvalidDescription(f"topic '{rules[0].topic}' has {CORRELATION_FILTERS_MAX} correlation filters")
        if sql + len(rules) - new_correlation > SQL_FILTERS_MAX:
            raise InvalidDescription(f"topic '{rules[0].topic}' has {SQL_FILTERS_MAX} SQL filters")

    def _check_destinations(self, description: AnyDescription) -> None:
        """Check that the entity forwards only to queues or topics that exist."""
        for setting in ("forward_to", "forward_dead_lettered_to"):
            path = getattr(description, setting, None)
            if path is None or path_key(path) in self.planned or path_key(path) == path_key(description.path):
                continue
            if not isinstance(self._catalog.find(path), Queue | Topic):
                raise InvalidDescription(f"{setting} of '{description.path}': there is no queue or topic '{path}'")

    def next_id(self) -> int:
        """Return an id that no entity ever had."""
        self.last_id += 1
        return self.last_id

    def add(self, entity: CatalogEntity) -> None:
        """Add an entity that is stored to the catalog."""
        match entity:
            case Queue():
                self._catalog.queues[path_key(entity.path)] = entity
            case Topic():
                self._catalog.topics[path_key(entity.path)] = entity
            case Subscription():
                self._catalog.topic(entity.description.topic).index.add(entity)
            case Rule():
                rule = entity.description
                self._catalog.subscription(rule.topic, rule.subscription).put_rule(entity)
        self._hooks.added(entity)

    # ── update ──

    async def _update(self, description: D) -> D:
        async with self._turn(description.path):
            entity = self._catalog.required(description.path)
            current = entity.description
            if type(current) is not type(description):
                raise InvalidDescription(f"'{current.path}' is a {current.KIND}, not a {description.KIND}")
            for name in description.IMMUTABLE:
                if getattr(description, name) != getattr(current, name):
                    raise InvalidDescription(f"{name} of '{current.path}' cannot be changed after creation")
            now_ms = self._now_ms()
            description = replace(
                description.checked(), **_names(current), created_ms=current.created_ms, updated_ms=now_ms
            )
            self._check_destinations(description)
            self._store.write(PutEntity(entity.entity_id, description.to_json()))
            await self.commit()
            match entity, description:
                case Rule(), RuleDescription():
                    subscription = self._catalog.subscription(description.topic, description.subscription)
                    subscription.put_rule(Rule(entity.entity_id, description))
                case (Queue(), QueueDescription()) | (Topic(), TopicDescription()):
                    entity.update(description, now_ms)
                case Subscription(), SubscriptionDescription():
                    entity.update(description, now_ms)
            self._hooks.updated(entity)
        logger.info("%s: %s '%s' updated", self._name, description.KIND, description.path)
        return description

    # ── delete ──

    async def _delete(self, path: str) -> None:
        async with self._turn(path):
            entity = self._catalog.required(path)
            if isinstance(entity, Subscription):
                entity.touch(self._now_ms())  # its deletion is a use of the topic
            await self._drop([entity])

    async def _delete_all(self) -> None:
        async with self.all_turns():
            await self._drop([*self._catalog.queues.values(), *self._catalog.topics.values()])

    async def delete_if(self, holder: Entity, is_wanted: Callable[[Entity], bool]) -> bool:
        """Delete the entity if `is_wanted(holder)` still says so when its turn has come; return whether it did.

        The wait for the turn may be long: meanwhile the entity may be used, updated, deleted or replaced. The caller
        prevents cancellation.
        """
        async with self._turn(holder.path):
            is_deleted = not holder.closed and is_wanted(holder)
            if is_deleted:
                await self._drop([holder])
        return is_deleted

    async def _drop(self, entities: Sequence[CatalogEntity]) -> None:
        """Delete entities and all that belongs to them in one commit."""
        family = [member for entity in entities for member in _family(entity)]
        for entity in entities:
            self._take_out(entity)
        for each in family:
            self._hooks.removed(each)
            if not isinstance(each, Rule):
                each.close()
        for each in family:
            self._store.write(DropEntity(each.entity_id))
        try:
            await self.commit()
        except StoreError:
            for each in family:
                self.add(each)
                if not isinstance(each, Rule):
                    each.reopen(self._now_ms())
            raise
        for each in family:
            self._hooks.deleted(each)
        for entity in entities:
            logger.info("%s: %s '%s' deleted", self._name, entity.description.KIND, entity.description.path)

    def _take_out(self, entity: CatalogEntity) -> None:
        match entity:
            case Queue():
                self._catalog.queues.pop(path_key(entity.path), None)
            case Topic():
                self._catalog.topics.pop(path_key(entity.path), None)
            case Subscription():
                topic = self._catalog.topic(entity.description.topic)
                topic.index.drop(entity.description.name.lower())
                topic.touch(entity.accessed_ms)  # uses of the subscription were uses of the topic
            case Rule():
                rule = entity.description
                self._catalog.subscription(rule.topic, rule.subscription).drop_rule(rule.name)

    async def commit(self) -> None:
        """Wait until all writes so far are durable."""
        committed: asyncio.Future[None] = self._loop.create_future()

        def done(error: StoreError | None) -> None:
            if committed.cancelled():
                return
            if error is None:
                committed.set_result(None)
            else:
                committed.set_exception(error)

        self._store.after_commit(done)
        await committed

    async def barrier(self) -> None:
        """Wait until all writes so far are committed or have failed, and their writers have been told."""
        with suppress(StoreError):
            await self.commit()


def _root(path: str) -> str:
    """Return the key of the queue or topic to which the path belongs: changes to all of it happen one by one."""
    return path_key(parse_entity(path).root)


def _family(entity: CatalogEntity) -> list[CatalogEntity]:
    """Return the entity first, then all that is deleted with it."""
    match entity:
        case Topic():
            return [entity, *[member for each in entity.subscriptions.values() for member in _family(each)]]
        case Subscription():
            return [entity, *entity.rules.values()]
    return [entity]


def _names(description: AnyDescription) -> dict[str, Any]:
    """Return the names as the creator spelled them."""
    match description:
        case RuleDescription():
            return {"topic": description.topic, "subscription": description.subscription, "name": description.name}
        case SubscriptionDescription():
            return {"topic": description.topic, "name": description.name}
    return {"path": description.path}
