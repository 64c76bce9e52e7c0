"""SQL actions: SET and REMOVE on the properties of one copy of a message."""

from __future__ import annotations

from typing import NamedTuple

from pairbus.broker.filters.kinds import SqlAction
from pairbus.broker.filters.view import MessageView


class Changed(NamedTuple):
    """A message that an action changed, in the form in which the broker stores it."""

    body: bytes
    "Sections from the properties on; the body sections are those of the published message, byte for byte."
    annotations: bytes
    "Encoded pairs of the message annotations."
    message_id: str
    session_id: str | None
    partition_key: str | None
    ttl_ms: int | None
    scheduled_ms: int


class CompiledAction:
    """A compiled action; `apply` runs it."""


def compile_action(action: SqlAction) -> CompiledAction:
    """Compile an action; FilterSyntaxError names the column."""
    raise NotImplementedError


def apply(action: CompiledAction, view: MessageView, rule: str = "") -> Changed:
    """Give the message as the action changes it; FilterEvaluationError when it cannot be evaluated.

    With `rule`, the copy gets the application property RuleName, as copies of rules with actions have.
    """
    raise NotImplementedError
