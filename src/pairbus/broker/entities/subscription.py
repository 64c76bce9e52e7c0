"""One subscription: its settings, its rules, and a receiving half for the copies that its topic makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pairbus.broker.boxes.box import Box
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.description import RuleDescription, SubscriptionDescription
from pairbus.broker.entities.entity import RETRY_PAUSE_MS, Entity
from pairbus.broker.entities.payloads import Payloads
from pairbus.broker.entities.receiving import Receiving
from pairbus.broker.entities.receiving_entity import ReceivingEntity
from pairbus.broker.store import Store, StoredMessage
from pairbus.broker.sweep import Remains
from pairbus.filters import CompiledRule, Rules, compile_rule


class Rule:
    """A rule as its subscription keeps it."""

    __slots__ = ("_compiled", "description", "rule_id")

    def __init__(self, rule_id: int, description: RuleDescription) -> None:
        self.rule_id = rule_id
        self.description = description
        self._compiled: CompiledRule | None = None

    @property
    def compiled(self) -> CompiledRule:
        """The rule, compiled once: when its subscription gets its first message."""
        if self._compiled is None:
            name, found, action = self.description.name, self.description.filter, self.description.action
            self._compiled = compile_rule(name, found, action)
        return self._compiled

    def __repr__(self) -> str:
        return f"<Rule {self.description.path}>"


class Subscription(ReceivingEntity[SubscriptionDescription]):
    """A subscription as its topic keeps it. The topic writes the copies; from their commit on they are received here
    as from a queue."""

    def __init__(
        self,
        subscription_id: int,
        description: SubscriptionDescription,
        store: Store,
        payloads: Payloads,
        *,
        now_ms: int,
        last_seq: int = 0,
        on_ready: Callable[[Box], None],
        budget: MemoryBudget | None = None,
    ) -> None:
        """Make a subscription. `on_ready`: as for a queue."""
        self.subscription_id = subscription_id
        self.rules: dict[str, Rule] = {}
        "Rules by name in lower case, in the order of their creation."
        self.on_rules: Callable[[], object] | None = None
        "Called when a rule was added, replaced or dropped; the topic sets it."
        self._compiled: Rules | None = None
        self._entity = entity = Entity(
            subscription_id,
            description.path,
            description,
            store,
            payloads,
            budget or MemoryBudget(),
            now_ms=now_ms,
            last_seq=last_seq,
            on_ready=on_ready,
            run_due=self.run_due,
        )
        self._receiving = Receiving(entity, description, lambda session_id: ())
        self._show(self._receiving)
        self._describe(description)

    def __repr__(self) -> str:
        return (
            f"<Subscription {self.path} {self.description.status} rules={len(self.rules)} active={self.active_count}"
            f" dead={self.dead_count} deferred={self.deferred_count}>"
        )

    @property
    def path(self) -> str:
        return self.description.path

    @property
    def own_bytes(self) -> int:
        """Bytes of its messages without payloads: its part of the topic's size."""
        return self._receiving.size_bytes - self._receiving.shared_bytes

    @property
    def idle_until_ms(self) -> int | None:
        return self._entity.idle_until_ms(self._receiving.accessed_ms)

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
        self._entity.last_seq += 1
        return self._entity.last_seq

    def ttl_ms(self, ttl_ms: int) -> int:
        """Return the time to live of a copy: the topic's, but not above the ceiling here; 0 is unlimited."""
        ceiling_ms = self._entity.ttl_ceiling_ms
        return ceiling_ms if ceiling_ms and (not ttl_ms or ttl_ms > ceiling_ms) else ttl_ms

    def take_in(self, box: Box, copies: Sequence[StoredMessage]) -> None:
        """Take committed copies into one of its boxes."""
        box.accept(copies)
        self._entity.announce(box)

    # ── start, change, end ──

    def recovered(self, now_ms: int) -> None:
        """Note that the index was read to its end."""
        self._receiving.recovered()
        self.touch(now_ms)

    def remains(self) -> Remains:
        """Return the rows to sweep once the drop is committed."""
        receiving = self._receiving
        receiving.discharge()
        return Remains(
            self.subscription_id, receiving.drains(), row_bytes=receiving.row_bytes(), states=receiving.state_rows()
        )

    # ── due work ──

    def next_due_ms(self) -> int | None:
        """Return a time not later than the next work of `run_due`, perhaps earlier. Ask again after every call."""
        known = [at_ms for at_ms in self._receiving.next_due_ms() if at_ms is not None]
        return max(min(known), self._entity.paused_until_ms) if known else None

    @property
    def is_catching_up(self) -> bool:
        """True while a batch of due work is being committed; the next one follows by itself."""
        return self._receiving.is_catching_up

    def run_due(self, now_ms: int) -> None:
        """Do a bounded part of the due work: locks and times to live that end."""
        if self._entity.may_run_due(now_ms):
            self._receiving.run_due(now_ms)
            self._entity.look_again_ms = now_ms + RETRY_PAUSE_MS
