"""Entities of one namespace by name, and the information that an administrator reads of them. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from pairbus.broker.admin import QueueInfo, SubscriptionInfo, TopicInfo
from pairbus.broker.boxes.box import Box
from pairbus.broker.description import RuleDescription, path_key
from pairbus.broker.entities.entity import Entity
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.receivable import Receivable
from pairbus.broker.entities.subscription import Rule, Subscription
from pairbus.broker.entities.topic import Topic
from pairbus.broker.wire.address import EntityName, parse_entity
from pairbus.errors import EntityNotFound

CatalogEntity = Entity | Rule


class Catalog:
    """Entities by name. Queues and topics share one set of names; topics have subscriptions, these have rules."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.topics: dict[str, Topic] = {}

    def holders(self) -> Iterator[Entity]:
        """Yield every entity that holds messages."""
        yield from self.queues.values()
        for topic in self.topics.values():
            yield topic
            yield from topic.subscriptions.values()

    def find(self, path: str) -> CatalogEntity | None:
        """Return the entity of any kind that the path names, in any case."""
        key = path_key(path)
        root = self.queues.get(key) or self.topics.get(key)
        if root is not None:
            return root
        name = parse_entity(key)
        topic = self.topics.get(name.root)
        if topic is None or name.subscription is None or name.lists is not None:
            return None
        subscription = topic.subscriptions.get(name.subscription)
        if name.rule is None or subscription is None:
            return subscription
        return subscription.rules.get(name.rule)

    def queue(self, path: str) -> Queue:
        queue = self.queues.get(path_key(path))
        if queue is None:
            raise EntityNotFound(f"queue '{path}' does not exist")
        return queue

    def topic(self, path: str) -> Topic:
        topic = self.topics.get(path_key(path))
        if topic is None:
            raise EntityNotFound(f"topic '{path}' does not exist")
        return topic

    def subscription(self, topic: str, name: str) -> Subscription:
        subscription = self.topic(topic).subscriptions.get(name.lower())
        if subscription is None:
            raise EntityNotFound(f"subscription '{name}' of topic '{topic}' does not exist")
        return subscription

    def rule(self, topic: str, subscription: str, name: str) -> Rule:
        rule = self.subscription(topic, subscription).rules.get(name.lower())
        if rule is None:
            raise EntityNotFound(f"rule '{name}' of subscription '{subscription}' of topic '{topic}' does not exist")
        return rule

    def required(self, path: str) -> CatalogEntity:
        """Return the entity that the path names, or raise EntityNotFound with a text that fits its kind."""
        key = path_key(path)
        if key in self.queues or key in self.topics:
            return self.queues.get(key) or self.topics[key]
        name = parse_entity(path)
        return self._below(name) if name.subscription is not None else self.queue(path)

    def _below(self, name: EntityName) -> CatalogEntity:
        assert name.subscription is not None
        if name.rule is None:
            return self.subscription(name.root, name.subscription)
        return self.rule(name.root, name.subscription, name.rule)

    # ── infos ──

    def queue_keys(self) -> list[str]:
        return sorted(self.queues)

    def topic_keys(self) -> list[str]:
        return sorted(self.topics)

    def subscription_keys(self, topic: str) -> list[str]:
        return sorted(self.topic(topic).subscriptions)

    def rule_keys(self, topic: str, subscription: str) -> list[str]:
        return sorted(self.subscription(topic, subscription).rules)

    def queue_infos(self) -> list[QueueInfo]:
        return [queue_info(queue) for _, queue in sorted(self.queues.items())]

    def topic_infos(self) -> list[TopicInfo]:
        return [topic_info(topic) for _, topic in sorted(self.topics.items())]

    def rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        return [rule.description for _, rule in sorted(self.subscription(topic, subscription).rules.items())]


def boxes_of(entity: Entity) -> tuple[Box, ...]:
    """Return the boxes from which clients can receive."""
    return entity.boxes if isinstance(entity, Receivable) else ()


def queue_info(queue: Queue) -> QueueInfo:
    return QueueInfo(
        description=queue.description,
        active=queue.active_count,
        dead_lettered=queue.dead_count,
        scheduled=queue.scheduled_count,
        deferred=queue.deferred_count,
        size_bytes=queue.size_bytes,
        accessed_ms=queue.accessed_ms,
        transfer_dead_lettered=queue.transfer_dead_count,
    )


def topic_info(topic: Topic) -> TopicInfo:
    sql_filters, correlation_filters = topic.filter_counts()
    return TopicInfo(
        description=topic.description,
        scheduled=topic.scheduled_count,
        subscriptions=len(topic.subscriptions),
        sql_filters=sql_filters,
        correlation_filters=correlation_filters,
        size_bytes=topic.size_bytes,
        accessed_ms=topic.accessed_ms,
    )


def subscription_info(subscription: Subscription) -> SubscriptionInfo:
    return SubscriptionInfo(
        description=subscription.description,
        active=subscription.active_count,
        dead_lettered=subscription.dead_count,
        deferred=subscription.deferred_count,
        transfer=0,  # a message that is forwarded is never between two entities
        transfer_dead_lettered=subscription.transfer_dead_count,
        accessed_ms=subscription.accessed_ms,
    )
