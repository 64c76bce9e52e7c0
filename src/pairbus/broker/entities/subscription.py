"""One subscription: its settings, its rules, and a receiving half for the copies that its topic makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pairbus.broker.boxes.box import Box
from pairbus.broker.description import RuleDescription, SubscriptionDescription
from pairbus.broker.entities.entity import NamespaceParts
from pairbus.broker.entities.receivable import Receivable
from pairbus.broker.store import StoredMessage
from pairbus.filters import CompiledRule, Rules, compile_rule


class Rule:
    """A rule as its subscription keeps it."""

    __slots__ = ("_compiled", "description", "entity_id")

    def __init__(self, entity_id: int, description: RuleDescription) -> None:
        self.entity_id = entity_id
        self.description = description
        self._compiled: CompiledRule | None = None

    @property
    def compiled(self) -> CompiledRule:
        """The rule, compiled once: when its subscription gets its first message."""
        if self._compiled is None:
            settings = self.description
            self._compiled = compile_rule(settings.name, settings.filter, settings.action)
        return self._compiled

    def __repr__(self) -> str:
        return f"<Rule {self.description.path}>"


class Subscription(Receivable):
    """A subscription as its topic keeps it. The topic writes the copies; from their commit on they are received here
    as from a queue."""

    description: SubscriptionDescription

    def __init__(
        self,
        subscription_id: int,
        description: SubscriptionDescription,
        parts: NamespaceParts,
        *,
        now_ms: int,
        last_seq: int = 0,
    ) -> None:
        super().__init__(subscription_id, description, parts, now_ms=now_ms, last_seq=last_seq)
        self.rules: dict[str, Rule] = {}
        "Rules by name in lower case, in the order of their creation."
        self.on_rules: Callable[[], object] | None = None
        "Called when a rule was added, replaced or dropped; the topic sets it."
        self._compiled: Rules | None = None
        self._apply_settings()

    def __repr__(self) -> str:
        return (
            f"<Subscription {self.path} {self.description.status} rules={len(self.rules)} active={self.active_count}"
            f" dead={self.dead_count} deferred={self.deferred_count}>"
        )

    @property
    def own_bytes(self) -> int:
        """Bytes of its messages without payloads: its part of the topic's size."""
        return self.size_bytes - sum(box.shared_bytes for box in self.boxes)

    # ── rules ──

    def put_rule(self, rule: Rule) -> None:
        """Add a rule, or replace the one of the same name."""
        self.rules[rule.description.name.lower()] = rule
        self._rules_changed()

    def drop_rule(self, name: str) -> None:
        del self.rules[name.lower()]
        self._rules_changed()

    def _rules_changed(self) -> None:
        self._compiled = None
        if self.on_rules is not None:
            self.on_rules()

    @property
    def compiled(self) -> Rules:
        """All rules, compiled; a rule that was there before a change is not compiled again."""
        if self._compiled is None:
            self._compiled = Rules.of(rule.compiled for rule in self.rules.values())
        return self._compiled

    # ── copies ──

    def next_seq(self) -> int:
        self.last_seq += 1
        return self.last_seq

    def ttl_ms(self, ttl_ms: int) -> int:
        """Return the time to live of a copy: the topic's, but not above the ceiling here; 0 is unlimited."""
        ceiling_ms = self.ttl_ceiling_ms
        return ceiling_ms if ceiling_ms and (not ttl_ms or ttl_ms > ceiling_ms) else ttl_ms

    def take_in(self, box: Box, copies: Sequence[StoredMessage]) -> None:
        """Take committed copies into one of its boxes."""
        box.accept(copies)
        self.announce(box)
