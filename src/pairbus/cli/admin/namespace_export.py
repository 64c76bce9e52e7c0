"""A configuration file of the official emulator, made from a live namespace. Keys are never read into it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from azure.servicebus.management import CorrelationRuleFilter

from pairbus.settings import Setting, path_of, settings_of
from pairbus.settings.durations import format_span
from pairbus.settings.types import PATH

CORRELATION = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}


def exported(client: Any, name: str | None, *, extended: bool) -> tuple[dict[str, Any], list[str]]:
    """Read the namespace; return the document and one sentence for each setting that it cannot express."""
    export = _Export(client, extended)
    namespace = {
        "Name": name or client.get_namespace_properties().name,
        "Queues": [export.entity("queue", queue) for queue in client.list_queues()],
        "Topics": [export.topic(topic) for topic in client.list_topics()],
    }
    document = {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}}
    return document, export.notes()


class _Export:
    def __init__(self, client: Any, extended: bool) -> None:
        self._client = client
        self._extended = extended
        self._keys = 0
        self._notes: list[str] = []

    def notes(self) -> list[str]:
        keys = f"{self._keys} authorization rules were left out: keys are never exported"
        return [*self._notes, *([keys] if self._keys else [])]

    def entity(self, kind: str, entity: Any) -> dict[str, Any]:
        values = {
            setting.element: _value(setting, getattr(entity, setting.sdk, None))
            for setting in settings_of(kind)
            if setting.is_known_to_emulator or self._extended
        }
        self._keys += len(getattr(entity, "authorization_rules", None) or [])
        return {"Name": entity.name, "Properties": {key: value for key, value in values.items() if value is not None}}

    def topic(self, topic: Any) -> dict[str, Any]:
        subscriptions = [self._subscription(topic.name, each) for each in self._client.list_subscriptions(topic.name)]
        return {**self.entity("topic", topic), "Subscriptions": subscriptions}

    def _subscription(self, topic: str, subscription: Any) -> dict[str, Any]:
        rules = list(self._client.list_rules(topic, subscription.name))
        if not rules:
            # A file cannot say "no rule": a subscription without rules gets $Default, which selects every message.
            rules_text = [{"Name": "none", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=0"}}}]
            self._notes.append(f"{topic}/{subscription.name} has no rules; the file has one that selects nothing")
            return {**self.entity("subscription", subscription), "Rules": rules_text}
        return {
            **self.entity("subscription", subscription),
            "Rules": [self._rule(topic, subscription.name, rule) for rule in rules],
        }

    def _rule(self, topic: str, subscription: str, rule: Any) -> dict[str, Any]:
        place = f"rule {rule.name} of {topic}/{subscription}"
        filter_ = rule.filter
        if isinstance(filter_, CorrelationRuleFilter):
            texts = {key: getattr(filter_, attribute) for key, attribute in CORRELATION.items()}
            inside: dict[str, Any] = {key: value for key, value in texts.items() if value is not None}
            if filter_.properties:
                inside["Properties"] = self._values(place, filter_.properties)
            properties: dict[str, Any] = {"FilterType": "Correlation", "CorrelationFilter": inside}
        else:
            properties = {"FilterType": "Sql", "SqlFilter": self._sql(place, filter_)}
        if rule.action is not None:
            properties["Action"] = self._sql(place, rule.action)
        return {"Name": rule.name, "Properties": properties}

    def _sql(self, place: str, part: Any) -> dict[str, Any]:
        inside = {"SqlExpression": part.sql_expression}
        if part.parameters:
            if self._extended:
                inside["Parameters"] = self._values(place, part.parameters)
            else:
                self._notes.append(f"{place}: its parameters were left out; --extended writes them")
        return inside

    def _values(self, place: str, properties: Any) -> dict[str, Any]:
        return {key: self._typed(place, key, value) for key, value in properties.items()}

    def _typed(self, place: str, key: str, value: Any) -> Any:
        """Return a typed value: JSON has no times or durations. `pairbus broker` reads the type, the emulator a
        text."""
        if not isinstance(value, datetime | timedelta):
            return value
        kind, text = (
            ("dateTime", value.isoformat()) if isinstance(value, datetime) else ("duration", format_span(value))
        )
        if self._extended:
            return {"Type": kind, "Value": text}
        self._notes.append(f"{place}: {key} is a {kind} and was written as a text; --extended keeps its type")
        return text


def _value(setting: Setting, value: Any) -> Any:
    """Return a setting as JSON; None, which is left out, is a duration without a limit."""
    if setting.type is PATH:
        return path_of(value) or ""
    field = None if value is None else setting.type.from_sdk(value)
    return None if field is None else setting.type.write(field)
