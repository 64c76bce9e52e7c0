"""One subscription: its settings and its rules."""

from __future__ import annotations

from pairbus.broker.description import RuleDescription, SubscriptionDescription


class Rule:
    """A rule as its subscription keeps it."""

    __slots__ = ("description", "rule_id")

    def __init__(self, rule_id: int, description: RuleDescription) -> None:
        self.rule_id = rule_id
        self.description = description

    def __repr__(self) -> str:
        return f"<Rule {self.description.path}>"


class Subscription:
    """A subscription as its topic keeps it."""

    def __init__(self, subscription_id: int, description: SubscriptionDescription) -> None:
        self.subscription_id = subscription_id
        self.description = description
        self.rules: dict[str, Rule] = {}
        "By name in lower case, in the order of their creation."
        self.accessed_ms = 0
        "Last receive in milliseconds since 1970; 0 is never."
        self.closed = False

    def __repr__(self) -> str:
        return f"<Subscription {self.path} rules={len(self.rules)}>"

    @property
    def path(self) -> str:
        return self.description.path

    active_count = dead_count = deferred_count = scheduled_count = transfer_count = transfer_dead_count = size_bytes = 0

    def update(self, description: SubscriptionDescription, now_ms: int) -> None:
        self.description = description

    def put_rule(self, rule: Rule) -> None:
        """Add a rule, or replace the one of the same name."""
        self.rules[rule.description.name.lower()] = rule

    def drop_rule(self, name: str) -> None:
        del self.rules[name.lower()]

    def close(self) -> None:
        self.closed = True

    def reopen(self, now_ms: int) -> None:
        """Undo `close`: the deletion could not be stored."""
        self.closed = False
