"""An ARM template made of entities in the emulator's format, for a namespace that exists."""

from __future__ import annotations

from typing import Any

from pairbus.cli.admin.arm.template import arm_name

SCHEMA = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
API_VERSION = "2024-01-01"
TYPE = "Microsoft.ServiceBus/namespaces"
FILTERS = {"Sql": ("SqlFilter", "sqlFilter"), "Correlation": ("CorrelationFilter", "correlationFilter")}


def as_template(namespace: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the template, and one sentence for each part that it cannot express."""
    made = _Template()
    for queue in namespace["Queues"]:
        made.add("queues", [queue["Name"]], _properties(queue))
    for topic in namespace["Topics"]:
        made.add("topics", [topic["Name"]], _properties(topic))
        for subscription in topic["Subscriptions"]:
            names = [topic["Name"], subscription["Name"]]
            made.add("topics/subscriptions", names, _properties(subscription))
            for rule in subscription["Rules"]:
                made.add("topics/subscriptions/rules", [*names, rule["Name"]], made.rule(rule))
    parameter = {"type": "string", "defaultValue": namespace["Name"]}
    document = {
        "$schema": SCHEMA,
        "contentVersion": "1.0.0.0",
        "parameters": {"namespaceName": parameter},
        "resources": made.resources,
    }
    return document, made.notes


class _Template:
    def __init__(self) -> None:
        self.resources: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def add(self, kind: str, names: list[str], properties: dict[str, Any]) -> None:
        resource: dict[str, Any] = {
            "type": f"{TYPE}/{kind}",
            "apiVersion": API_VERSION,
            "name": _name(names),
            "properties": properties,
        }
        parts = kind.split("/")
        if len(parts) > 1:
            arguments = ", ".join(["parameters('namespaceName')", *map(_quoted, names[:-1])])
            resource["dependsOn"] = [f"[resourceId('{TYPE}/{'/'.join(parts[:-1])}', {arguments})]"]
        self.resources.append(resource)

    def rule(self, rule: dict[str, Any]) -> dict[str, Any]:
        properties = rule["Properties"]
        kind, member = FILTERS[properties["FilterType"]]
        part = properties[f"{properties['FilterType']}Filter"]
        made = {"filterType": kind, member: self._part(rule["Name"], part)}
        if properties.get("Action"):
            made["action"] = self._part(rule["Name"], properties["Action"])
        return made

    def _part(self, name: str, part: dict[str, Any]) -> dict[str, Any]:
        made = {
            arm_name(key): _escaped(value) for key, value in part.items() if key not in ("Parameters", "Properties")
        }
        if part.get("Parameters"):
            self.notes.append(f"rule {name}: its parameters were left out: a template has none")
        if part.get("Properties"):
            made["properties"] = {key: self._text(name, key, value) for key, value in part["Properties"].items()}
        return made

    def _text(self, name: str, key: str, value: Any) -> str:
        if isinstance(value, str):
            return str(_escaped(value))
        self.notes.append(f"rule {name}: {key} was written as a text: a template has no other type for it")
        plain = value["Value"] if isinstance(value, dict) else value
        return str(plain).lower() if isinstance(plain, bool) else str(plain)


def _properties(entity: dict[str, Any]) -> dict[str, Any]:
    return {arm_name(key): _escaped(value) for key, value in entity["Properties"].items() if value != ""}


def _escaped(value: Any) -> Any:
    """Return a text that the template does not take for an expression."""
    return f"[{value}" if isinstance(value, str) and value.startswith("[") else value


def _name(names: list[str]) -> str:
    slots = "/".join(f"{{{n}}}" for n in range(len(names) + 1))
    return f"[format('{slots}', parameters('namespaceName'), {', '.join(map(_quoted, names))})]"


def _quoted(name: str) -> str:
    """Return a literal; a path with slashes would be taken for several names."""
    return "'" + name.replace("/", "~").replace("'", "''") + "'"
