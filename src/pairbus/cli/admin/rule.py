"""`pairbus rule`: create, list, show, update and delete rules of subscriptions, ours or Azure's."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from pairbus.cli.admin import entity_options as options
from pairbus.cli.admin.connection import connected

_app = options.group("Create, list, show, update and delete rules of subscriptions.")

Name = Annotated[str, typer.Argument(metavar="NAME", callback=options.named("rule"), help="Name of the rule.")]
Sql = Annotated[str | None, typer.Option("--sql", metavar="SQL", help="SQL filter, such as \"color = 'red'\".")]
Action = Annotated[
    str | None, typer.Option("--action", metavar="SQL", help='SQL action on the copy, such as "SET seen = TRUE".')
]
Correlation = Annotated[
    list[str] | None,
    typer.Option(
        "--correlation",
        metavar="KEY=VALUE",
        help="Property of a correlation filter. Repeat for more: all must be equal.",
    ),
]
SYSTEM_PROPERTIES = {
    "content-type": "content_type",
    "correlation-id": "correlation_id",
    "label": "label",
    "message-id": "message_id",
    "reply-to": "reply_to",
    "reply-to-session-id": "reply_to_session_id",
    "session-id": "session_id",
    "subject": "label",
    "to": "to",
}
_TYPES: dict[str, Any] = {"text": str, "int": int, "double": float}
_KEYS = """\b
Keys of --correlation are content-type, correlation-id, label, message-id, reply-to,
reply-to-session-id, session-id, subject and to. Any other key, or user.KEY, is an
application property: a text, unless it is written as KEY:int=5, KEY:double=1.5 or
KEY:bool=true.
"""


def register(app: typer.Typer) -> None:
    """Add the commands `pairbus rule …`."""
    app.add_typer(_app, name="rule")


@_app.command(
    epilog=f"""\b
Examples:
  pairbus rule create events red paint --sql "color = 'red'" --action "SET seen = TRUE"
  pairbus rule create events red large --correlation subject=paint --correlation litres:int=5
  pairbus rule delete events red '$Default' --yes

{_KEYS}"""
)
@connected
def create(
    client: Any,
    topic: options.Topic,
    subscription: options.Subscription,
    name: Name,
    sql: Sql = None,
    action: Action = None,
    correlation: Correlation = None,
) -> None:
    """Create a rule. Without --sql and --correlation it selects every message.

    A new subscription has the rule $Default, which selects every message: delete it, or the other rules change little.
    """
    client.create_rule(topic, subscription, name, filter=_filter(sql, correlation), action=_action(action))
    typer.echo(f"created {topic}/Subscriptions/{subscription}/Rules/{name}")


@_app.command("list", epilog="Example: pairbus rule list events red --json")
@connected
def list_rules(
    client: Any, topic: options.Topic, subscription: options.Subscription, as_json: options.Json = False
) -> None:
    """List the rules of a subscription."""
    rules = [_shown(rule) for rule in client.list_rules(topic, subscription)]
    if not as_json:
        rules = [_in_one_line(rule) for rule in rules]
    options.print_entities(("name", "type", "filter", "action"), rules, as_json)


@_app.command(epilog="Example: pairbus rule show events red paint --json")
@connected
def show(
    client: Any,
    topic: options.Topic,
    subscription: options.Subscription,
    name: Name,
    as_json: options.Json = False,
) -> None:
    """Show a rule's filter and action."""
    shown = _shown(client.get_rule(topic, subscription, name))
    options.print_settings(shown if as_json else _in_one_line(shown), as_json)


@_app.command(
    epilog=f"""\b
Examples:
  pairbus rule update events red paint --sql "color IN ('red', 'pink')"
  pairbus rule update events red paint --action ''

{_KEYS}"""
)
@connected
def update(
    client: Any,
    topic: options.Topic,
    subscription: options.Subscription,
    name: Name,
    sql: Sql = None,
    action: Action = None,
    correlation: Correlation = None,
) -> None:
    """Replace the filter or the action of a rule; the other part stays. An empty action ('') removes the action."""
    if sql is None and action is None and not correlation:
        raise typer.BadParameter("give --sql, --correlation or --action")
    rule = client.get_rule(topic, subscription, name)
    if sql is not None or correlation:
        rule.filter = _filter(sql, correlation)
    if action is not None:
        rule.action = _action(action)
    client.update_rule(topic, subscription, rule)
    typer.echo(f"updated {topic}/Subscriptions/{subscription}/Rules/{name}")


@_app.command(epilog="Example: pairbus rule delete events red '$Default' --yes")
@connected
def delete(
    client: Any, topic: options.Topic, subscription: options.Subscription, name: Name, yes: options.Yes = False
) -> None:
    """Delete a rule. Asks first, unless --yes is given."""
    options.confirm_deletion(f"rule {name} of subscription {subscription} of topic {topic}", yes)
    client.delete_rule(topic, subscription, name)
    typer.echo(f"deleted {topic}/Subscriptions/{subscription}/Rules/{name}")


# ── filters ──


def _filter(sql: str | None, correlation: list[str] | None) -> Any:
    from azure.servicebus.management import CorrelationRuleFilter, SqlRuleFilter, TrueRuleFilter

    if sql is not None and correlation:
        raise typer.BadParameter("--sql and --correlation exclude each other")
    if sql is not None:
        return SqlRuleFilter(sql)
    if not correlation:
        return TrueRuleFilter()
    texts: dict[str, str] = {}
    properties: dict[str, Any] = {}
    for pair in correlation:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"--correlation {pair!r}: KEY=VALUE is needed, for example subject=red")
        if key.lower() in SYSTEM_PROPERTIES:
            texts[SYSTEM_PROPERTIES[key.lower()]] = value
        else:
            name, kind = key.removeprefix("user."), "text"
            if ":" in name:
                name, _, kind = name.rpartition(":")
            properties[name] = _typed(pair, kind, value)
    return CorrelationRuleFilter(**texts, properties=properties)


def _typed(pair: str, kind: str, value: str) -> Any:
    if kind == "bool":
        if value.lower() not in ("true", "false"):
            raise typer.BadParameter(f"--correlation {pair!r}: a bool is true or false")
        return value.lower() == "true"
    if kind not in _TYPES:
        raise typer.BadParameter(f"--correlation {pair!r}: the type {kind!r} is not one of text, int, double, bool")
    try:
        return _TYPES[kind](value)
    except ValueError:
        raise typer.BadParameter(f"--correlation {pair!r}: {value!r} is not of the type {kind}") from None


def _action(text: str | None) -> Any:
    from azure.servicebus.management import SqlRuleAction

    return SqlRuleAction(text) if text else None


def _shown(rule: Any) -> dict[str, Any]:
    from azure.servicebus.management import CorrelationRuleFilter, FalseRuleFilter, TrueRuleFilter

    rule_filter = rule.filter
    if isinstance(rule_filter, CorrelationRuleFilter):
        kind = "correlation"
        texts = {key: getattr(rule_filter, attribute) for key, attribute in SYSTEM_PROPERTIES.items() if key != "label"}
        described: Any = {key: value for key, value in texts.items() if value is not None}
        described |= {f"user.{key}": _plain(value) for key, value in (rule_filter.properties or {}).items()}
    else:
        kind = {TrueRuleFilter: "true", FalseRuleFilter: "false"}.get(type(rule_filter), "sql")
        described = rule_filter.sql_expression
    parameters = {key: _plain(value) for key, value in (getattr(rule_filter, "parameters", None) or {}).items()}
    return {
        "name": rule.name,
        "type": kind,
        "filter": described,
        "parameters": parameters,
        "action": rule.action.sql_expression if rule.action is not None else None,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else value


def _in_one_line(shown: dict[str, Any]) -> dict[str, Any]:
    def line(condition: Any) -> Any:
        return (
            ", ".join(f"{key}={value}" for key, value in condition.items())
            if isinstance(condition, dict)
            else condition
        )

    return {**shown, "filter": line(shown["filter"]), "parameters": line(shown["parameters"]) or None}
