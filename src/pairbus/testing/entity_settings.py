"""Settings of entities under the names of `ServiceBusAdministrationClient`, which users of the kit know."""

from __future__ import annotations

from typing import Any

from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.errors import did_you_mean
from pairbus.settings import settings_of


def described_queue(name: str, settings: dict[str, Any]) -> QueueDescription:
    return QueueDescription(name, **_values(QueueDescription, settings))


def described_topic(name: str, settings: dict[str, Any]) -> TopicDescription:
    return TopicDescription(name, **_values(TopicDescription, settings))


def described_subscription(topic: str, name: str, settings: dict[str, Any]) -> SubscriptionDescription:
    return SubscriptionDescription(topic, name, **_values(SubscriptionDescription, settings))


def _values(kind: type[Any], settings: dict[str, Any]) -> dict[str, Any]:
    settings_by_name = {setting.sdk: setting for setting in settings_of(kind.KIND)}
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in settings_by_name:
            names = sorted(settings_by_name)
            hint = did_you_mean(name, names) or ";"
            raise TypeError(f"a {kind.KIND} has no setting {name!r}{hint} the settings are {', '.join(names)}")
        setting = settings_by_name[name]
        try:
            values[setting.attribute] = setting.type.from_sdk(value)
        except TypeError as error:
            raise TypeError(f"{name} {error}") from None
    return values
