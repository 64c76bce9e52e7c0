"""The two ways in which a rule fails: its text is wrong, or it cannot be evaluated for a message."""

from __future__ import annotations

from pairbus.errors import InvalidDescription, PairbusError


class FilterSyntaxError(InvalidDescription):
    """The text of a filter or an action is wrong. The rule was not created; the text names the column."""

    def __init__(self, column: int, problem: str) -> None:
        super().__init__(f"column {column}: {problem}")
        self.column = column
        "Place in the text, counted from 1."


class FilterEvaluationError(PairbusError):
    """A filter or an action cannot be evaluated for one message, for example because it divides by zero.

    The subscription dead-letters the message or drops it, as its settings say.
    """

    def __init__(self, problem: str, rule: str = "") -> None:
        super().__init__(f"rule '{rule}': {problem}" if rule else problem)
        self.problem = problem
        self.rule = rule
        "Name of the rule; empty as long as it is not known."
