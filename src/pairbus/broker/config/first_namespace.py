"""The namespace that Microsoft's emulator serves when nobody gives it a configuration: examples of its tools use it."""

from __future__ import annotations

from pairbus.broker.config.entity_settings import SubscriptionConfig
from pairbus.broker.config.file import NamespaceConfig
from pairbus.broker.description import QueueDescription, RuleDescription, SubscriptionDescription, TopicDescription
from pairbus.filters import CorrelationFilter, Filter, SqlFilter

_TOPIC = "topic.1"
_HOUR_MS = 3_600_000
_DELIVERIES = 3


def first_namespace() -> NamespaceConfig:
    rules: dict[str, tuple[str, Filter] | None] = {
        "subscription.1": (
            "app-prop-filter-1",
            CorrelationFilter(
                content_type="application/text",
                correlation_id="id1",
                label="subject1",
                message_id="msgid1",
                reply_to="someQueue",
                reply_to_session_id="sessionId",
                session_id="session1",
                to="xyz",
            ),
        ),
        "subscription.2": ("user-prop-filter-1", CorrelationFilter(properties={"prop1": "value1"})),
        "subscription.3": None,
        "subscription.4": ("sql-filter-1", SqlFilter("sys.MessageId = '123456' AND userProp1 = 'value1'")),
    }
    return NamespaceConfig(
        "sbemulatorns",
        [QueueDescription("queue.1", default_ttl_ms=_HOUR_MS, max_delivery_count=_DELIVERIES)],
        [],
        [TopicDescription(_TOPIC, default_ttl_ms=_HOUR_MS)],
        [
            SubscriptionConfig(
                SubscriptionDescription(_TOPIC, name, default_ttl_ms=_HOUR_MS, max_delivery_count=_DELIVERIES),
                None if rule is None else (RuleDescription(_TOPIC, name, rule[0], filter=rule[1]),),
            )
            for name, rule in rules.items()
        ],
    )
