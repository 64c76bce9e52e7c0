"""Rules of topic subscriptions: filters select messages, actions change the copies of those that were selected.

    rules = Rules([("$Default", TrueFilter(), None), ("red", SqlFilter("color = 'red'"), SqlAction("SET seen = 1"))])
    view = MessageView(draft.body, draft.annotations, ttl_ms=draft.ttl_ms, enqueued_ms=now_ms, seq=seq)
    for copy in rules.evaluate(view): ...

Laws of this package.
 1. A rule is compiled once, when `Rules` (or `compile_filter`, `compile_action`) is called: FilterSyntaxError then.
 2. Evaluating ends with a result or a FilterEvaluationError, whatever the message contains.
 3. One `MessageView` serves all subscriptions of a topic: its properties are decoded at most once.
 4. No code here reads a clock or does I/O. `newid()` draws random bytes.
"""

from __future__ import annotations

from pairbus.filters.actions import Changed, CompiledAction, apply, compile_action
from pairbus.filters.errors import FilterEvaluationError, FilterSyntaxError
from pairbus.filters.index import TextTables, WantedText
from pairbus.filters.kinds import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    LocalTime,
    SqlAction,
    SqlFilter,
    TrueFilter,
    Value,
    action_from_json,
    action_to_json,
    check_value,
    filter_from_json,
    filter_to_json,
    type_name,
    without_kind,
)
from pairbus.filters.rules import CompiledRule, Copy, Rules, compile_filter, compile_rule
from pairbus.filters.view import MessageView

__all__ = [
    "Changed",
    "CompiledAction",
    "CompiledRule",
    "Copy",
    "CorrelationFilter",
    "FalseFilter",
    "Filter",
    "FilterEvaluationError",
    "FilterSyntaxError",
    "LocalTime",
    "MessageView",
    "Rules",
    "SqlAction",
    "SqlFilter",
    "TextTables",
    "TrueFilter",
    "Value",
    "WantedText",
    "action_from_json",
    "action_to_json",
    "apply",
    "check_value",
    "compile_action",
    "compile_filter",
    "compile_rule",
    "filter_from_json",
    "filter_to_json",
    "type_name",
    "without_kind",
]
