"""The subscriptions of a topic, and which of them may select a message.

The texts that correlation filters ask for are in one index over all rules of all subscriptions. A message costs a look
into a few tables, and the evaluation of the subscriptions that these name: not of each subscription that there is.

Law: a subscription that is left out would get no copy, and no error, from its rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from pairbus.broker.entities.subscription import Subscription
from pairbus.filters import FilterEvaluationError, MessageView, TextTables, WantedText

_BY_ID = attrgetter("entity_id")


class SubscriptionIndex:
    """The subscriptions of a topic by name in lower case, and the index of their rules."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self._tables: TextTables[Subscription] = TextTables()
        self._indexed: dict[Subscription, list[Sequence[WantedText]]] = {}
        "Texts of each subscription that is in the tables: one row for each of its rules."
        self._others: dict[Subscription, None] = {}
        "Subscriptions with a rule that the tables cannot have: they are always asked."
        self._changed: dict[Subscription, None] = {}
        "Subscriptions whose rules have changed since the last message."

    def add(self, subscription: Subscription) -> None:
        """Add a subscription, or put it in the place of the one with its name."""
        name = subscription.description.name.lower()
        self.drop(name)
        self.subscriptions[name] = subscription
        subscription.on_rules = lambda: self._changed.setdefault(subscription)
        self._changed[subscription] = None

    def drop(self, name: str) -> None:
        subscription = self.subscriptions.pop(name, None)
        if subscription is not None:
            subscription.on_rules = None
            self._changed.pop(subscription, None)
            self._take_out(subscription)

    def candidates(self, view: MessageView) -> Iterable[Subscription]:
        """Return the subscriptions that may select the message, in the order of their creation."""
        if self._changed:
            self._read_changes()
        if not self._indexed:
            return self.subscriptions.values()
        try:
            matching = self._tables.keys(view)
        except FilterEvaluationError:  # the message cannot be read, which each subscription answers by its settings
            return self.subscriptions.values()
        return sorted({*matching, *self._others}, key=_BY_ID)

    def _read_changes(self) -> None:
        for subscription in self._changed:
            self._take_out(subscription)
            rows = [rule.compiled.texts for rule in subscription.rules.values()]
            texts = [row for row in rows if row]
            if len(texts) < len(rows):
                self._others[subscription] = None
                continue
            self._indexed[subscription] = texts
            for row in texts:
                self._tables.add(subscription, row)
        self._changed.clear()

    def _take_out(self, subscription: Subscription) -> None:
        self._others.pop(subscription, None)
        for row in self._indexed.pop(subscription, ()):
            self._tables.remove(subscription, row)
