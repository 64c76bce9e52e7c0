"""One topic: its settings and its subscriptions."""

from __future__ import annotations

from pairbus.broker.description import TopicDescription
from pairbus.broker.filters import CorrelationFilter
from pairbus.broker.subscription import Subscription


class Topic:
    """A topic as the registry keeps it."""

    def __init__(self, topic_id: int, description: TopicDescription) -> None:
        self.topic_id = topic_id
        self.description = description
        self.subscriptions: dict[str, Subscription] = {}
        "By name in lower case."
        self.accessed_ms = 0
        "Last send in milliseconds since 1970; 0 is never."
        self.closed = False

    def __repr__(self) -> str:
        return f"<Topic {self.path} subscriptions={len(self.subscriptions)}>"

    @property
    def path(self) -> str:
        return self.description.path

    @property
    def scheduled_count(self) -> int:
        return 0

    @property
    def size_bytes(self) -> int:
        return 0

    def filter_counts(self) -> tuple[int, int]:
        """Count the SQL filters and the correlation filters of all subscriptions."""
        rules = [rule for subscription in self.subscriptions.values() for rule in subscription.rules.values()]
        correlations = sum(isinstance(rule.description.filter, CorrelationFilter) for rule in rules)
        return len(rules) - correlations, correlations

    def update(self, description: TopicDescription, now_ms: int) -> None:
        self.description = description

    def close(self) -> None:
        self.closed = True

    def reopen(self, now_ms: int) -> None:
        """Undo `close`: the deletion could not be stored."""
        self.closed = False
