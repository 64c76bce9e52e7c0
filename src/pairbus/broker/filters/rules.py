"""The compiled rules of one subscription: which copies of a message it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pairbus.broker.filters.actions import Changed
from pairbus.broker.filters.kinds import Filter, SqlAction
from pairbus.broker.filters.view import MessageView


class Copy(NamedTuple):
    """One copy of a message that the subscription gets."""

    rule: str
    "Name of the rule that made the copy; of several rules without action, the first that matches."
    changed: Changed | None = None
    "The message as the rule's action changed it; None: the message as it was published."


class Rules:
    """The rules of one subscription, compiled."""

    def __init__(self, rules: Iterable[tuple[str, Filter, SqlAction | None]]) -> None:
        """Compile (name, filter, action) of each rule; FilterSyntaxError when a text is wrong."""
        raise NotImplementedError

    def evaluate(self, view: MessageView) -> list[Copy]:
        """Give the copies of the message: none when no rule matches, one for all matching rules without an action
        together, and one for each matching rule with an action. FilterEvaluationError names the rule that failed."""
        raise NotImplementedError


def compile_filter(described: Filter) -> Callable[[MessageView], bool]:
    """Compile a filter to a function that says whether a message is selected; FilterSyntaxError names the column."""
    raise NotImplementedError
