"""Creates, changes and deletes rules of a subscription for the page, by the administration of the namespace.

A request describes a rule as `GET rules` does: its name, the kind of its filter (sql, correlation, true, false), the
expression of an SQL filter, or the fields and properties of a correlation filter, and the action.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pairbus.amqp.types import Timestamp
from pairbus.dashboard.administering import administer, topic_and_name
from pairbus.dashboard.requests import read_object
from pairbus.errors import ConfigError
from pairbus.explorer.encoding import typed_map

if TYPE_CHECKING:
    from pairbus.dashboard.api import Page

CORRELATION = (
    *("content_type", "correlation_id", "label", "message_id", "reply_to", "reply_to_session_id", "session_id", "to"),
)
"Fields of a correlation filter, by their names in the SDK."
FILTERS = ("sql", "correlation", "true", "false")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Names = dict[str, str]


async def create(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST create-rule: {"path", "name", "filter", …}."""
    body = await read_object(request)
    subscription, name = _place(body)
    values = _read(body)
    await administer(page, names, lambda admin: admin.create_rule(*subscription, name, **values))
    return {"created": name}


async def change(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST change-rule, which has the same fields: filter and action of the rule are replaced."""
    body = await read_object(request)
    subscription, name = _place(body)
    values = _read(body)

    def work(admin: Any) -> None:
        rule = admin.get_rule(*subscription, name)
        for field, value in values.items():
            setattr(rule, field, value)
        admin.update_rule(*subscription, rule)

    await administer(page, names, work)
    return {"changed": name}


async def delete(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST delete-rule: {"path", "name"}."""
    body = await read_object(request)
    subscription, name = _place(body)
    await administer(page, names, lambda admin: admin.delete_rule(*subscription, name))
    return {"deleted": name}


def _place(body: dict[str, Any]) -> tuple[tuple[str, str], str]:
    """Return the subscription, as topic and name, and the name of the rule."""
    return topic_and_name(_text(body, "path")), _text(body, "name")


def _read(body: dict[str, Any]) -> dict[str, Any]:
    """Read filter and action as the SDK takes them; ConfigError names the field that is wrong."""
    from azure.servicebus.management import (
        CorrelationRuleFilter,
        FalseRuleFilter,
        SqlRuleAction,
        SqlRuleFilter,
        TrueRuleFilter,
    )

    kind = body.get("filter")
    if kind == "sql":
        rule_filter: Any = SqlRuleFilter(_text(body, "expression"))
    elif kind == "correlation":
        rule_filter = CorrelationRuleFilter(**_fields(body), properties=_properties(body))
    elif kind in ("true", "false"):
        rule_filter = TrueRuleFilter() if kind == "true" else FalseRuleFilter()
    else:
        raise ConfigError(f"filter is {kind!r:.60}; {', '.join(FILTERS)} are known")
    return {"filter": rule_filter, "action": SqlRuleAction(_text(body, "action")) if body.get("action") else None}


def _fields(body: dict[str, Any]) -> dict[str, str]:
    fields = body.get("fields") or {}
    if not isinstance(fields, dict):
        raise ConfigError("fields must be an object")
    if unknown := [name for name in fields if name not in CORRELATION]:
        raise ConfigError(f"a correlation filter has no field {unknown[0]!r:.60}; known are {', '.join(CORRELATION)}")
    return {name: _text(fields, name, strips=False) for name in fields}  # a filter compares every blank


def _properties(body: dict[str, Any]) -> dict[str, Any]:
    properties = typed_map(body, "properties", "string")
    return {name: _as_date(value) if isinstance(value, Timestamp) else value for name, value in properties.items()}


def _as_date(value: Timestamp) -> datetime:
    try:
        return EPOCH + timedelta(milliseconds=int(value))
    except OverflowError:
        raise ConfigError(f"the time {int(value)} ms is outside the years 1 to 9999") from None


def _text(body: dict[str, Any], name: str, *, strips: bool = True) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} is {value!r:.60}; a text is needed")
    return value.strip() if strips else value
