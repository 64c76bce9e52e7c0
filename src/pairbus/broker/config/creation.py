"""The entities of a configuration, created in a namespace when it begins."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pairbus.broker.admin.settings import in_words_of_the_service
from pairbus.broker.config.entity_settings import SubscriptionConfig
from pairbus.broker.description import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.errors import ConfigError, EntityExists, InvalidDescription
from pairbus.settings import fixed_at_creation

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace

logger = logging.getLogger("pairbus.broker")

E = TypeVar("E", QueueDescription, TopicDescription, SubscriptionDescription)


async def create_entities(
    namespace: Namespace,
    topics: Sequence[TopicDescription],
    queues: Sequence[QueueDescription],
    subscriptions: Sequence[SubscriptionConfig],
    *,
    is_updated: bool,
) -> None:
    """Create the entities that are missing; an entity may forward to one that comes later.

    `is_updated`: entities that exist get these settings and rules. Otherwise they are left as they are. ConfigError: a
    setting is refused.
    """
    namespace.plan([*[topic.path for topic in topics], *[queue.path for queue in queues]])
    try:
        for topic in topics:
            if not await _is_created(namespace, topic) and is_updated:
                await _update(namespace, topic)
        for queue in queues:
            if not await _is_created(namespace, queue) and is_updated:
                await _update(namespace, queue)
        for config in subscriptions:
            if not await _is_subscription_created(namespace, config) and is_updated:
                await _update(namespace, config.description)
                await _put_rules(namespace, config.rules or ())
    except InvalidDescription as error:
        raise ConfigError(f"namespace {namespace.name!r}: {in_words_of_the_service(str(error))}") from error
    namespace.plan(())


async def _is_created(namespace: Namespace, description: E) -> bool:
    try:
        await namespace.create(description)
    except EntityExists:
        return _tell_existing(namespace, description)
    return True


async def _is_subscription_created(namespace: Namespace, config: SubscriptionConfig) -> bool:
    if config.rules is None:
        return await _is_created(namespace, config.description)
    try:
        await namespace.create_subscription(config.description, config.rules)
    except EntityExists:
        return _tell_existing(namespace, config.description)
    return True


def _tell_existing(namespace: Namespace, description: E) -> bool:
    logger.info("%s: %s '%s' exists and keeps its messages", namespace.name, description.KIND, description.path)
    return False


async def _update(namespace: Namespace, description: E) -> None:
    """Give an entity these settings, but for those that are fixed at its creation."""
    kind, path = description.KIND, description.path
    current = namespace.catalog.required(path).description
    if type(current) is not type(description):
        raise InvalidDescription(f"'{path}' is a {current.KIND}, not a {kind}")
    fixed = {name: getattr(current, name) for name in fixed_at_creation(kind)}
    kept = [name for name, value in fixed.items() if getattr(description, name) != value]
    if kept:
        logger.warning(
            "%s: %s of %s '%s' is fixed at its creation and stays; delete the entity to change it",
            namespace.name,
            ", ".join(kept),
            kind,
            path,
        )
    await namespace.update(replace(description, **fixed))


async def _put_rules(namespace: Namespace, rules: Sequence[RuleDescription]) -> None:
    for rule in rules:
        try:
            await namespace.create(rule)
        except EntityExists:
            await namespace.update(rule)
