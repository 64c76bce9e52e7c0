"""Entities created, changed and deleted from the page, each checked by what the broker has afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboard.world import World, world

CONTOSO = "namespaces/contoso"


async def test_queue_is_created_changed_and_deleted() -> None:
    async with world() as there:
        settings = {"lock_duration": "30s", "default_message_time_to_live": "14d", "requires_session": True}
        await there.post(f"{CONTOSO}/create", {"kind": "queue", "path": "new", "settings": settings})
        found = await there.get(f"{CONTOSO}/settings?path=new")
        assert {name: found[name] for name in settings} == settings
        await there.post(
            f"{CONTOSO}/change", {"path": "new", "settings": {"max_delivery_count": 3, "status": "Disabled"}}
        )
        found = await there.get(f"{CONTOSO}/settings?path=new")
        assert (found["max_delivery_count"], found["status"], found["lock_duration"]) == (3, "Disabled", "30s")
        await there.post(f"{CONTOSO}/delete", {"path": "new"})
        assert "new" not in (await there.get("overview"))["namespaces"]["contoso"]["entities"]


async def test_topic_and_subscription_are_created_and_deleted() -> None:
    async with world() as there:
        await there.post(f"{CONTOSO}/create", {"kind": "topic", "path": "prices"})
        path = "prices/Subscriptions/eu"
        await there.post(
            f"{CONTOSO}/create", {"kind": "subscription", "path": path, "settings": {"lock_duration": "5m"}}
        )
        assert (await there.get(f"{CONTOSO}/settings?path={path}"))["lock_duration"] == "5m"
        await there.post(f"{CONTOSO}/delete", {"path": path})
        await there.post(f"{CONTOSO}/delete", {"path": "prices"})
        entities = (await there.get("overview"))["namespaces"]["contoso"]["entities"]
        assert not any(one.startswith("prices") for one in entities)


NEWS = "news/Subscriptions/all"


async def test_rule_is_created_changed_and_deleted() -> None:
    """A rule is written as the list of rules shows it."""
    async with world() as there:
        amount = {"type": "long", "value": "5"}
        equal = {"filter": "correlation", "fields": {"label": " paint"}, "properties": {"amount": amount}}
        for rule in (
            {"name": "dear", "filter": "sql", "expression": "amount > 10", "action": "SET seen = TRUE"},
            {"name": "paint", **equal},
            {"name": "none", "filter": "false"},
        ):
            await there.post(f"{CONTOSO}/create-rule", {"path": NEWS, **rule})
        await there.post(f"{CONTOSO}/delete-rule", {"path": NEWS, "name": "$Default"})
        await there.post(
            f"{CONTOSO}/change-rule", {"path": NEWS, "name": "dear", "filter": "sql", "expression": "amount > 20"}
        )
        found = await there.get(f"{CONTOSO}/rules?path={NEWS}")
        assert {rule.pop("name"): rule for rule in found} == {
            "dear": {"filter": "sql", "expression": "amount > 20"},
            "paint": {**equal, "properties": {"amount": {"type": "int", "value": "5"}}},
            "none": {"filter": "false"},
        }


@pytest.mark.parametrize(
    ("route", "body", "status", "word"),
    [
        ("create-rule", {"name": "x", "filter": "sql", "expression": "amount >"}, 400, "operand"),
        ("create-rule", {"name": "x", "filter": "sql", "expression": " "}, 400, "expression"),
        ("create-rule", {"name": "x", "filter": "like"}, 400, "correlation"),
        ("create-rule", {"name": "x", "filter": "correlation", "fields": {"color": "red"}}, 400, "color"),
        ("create-rule", {"name": "x", "filter": "correlation", "properties": {"a": [1]}}, 400, "properties.a"),
        ("create-rule", {"name": "$Default", "filter": "true"}, 400, "$Default"),
        ("create-rule", {"filter": "true"}, 400, "name"),
        ("create-rule", {"path": "orders", "name": "x", "filter": "true"}, 400, "no subscription"),
        ("change-rule", {"name": "missing", "filter": "true"}, 404, "missing"),
        ("delete-rule", {"name": "missing"}, 404, "missing"),
        ("delete-rule", {"path": "news/Subscriptions/none", "name": "x"}, 404, "none"),
    ],
)
async def test_wrong_request_changes_no_rule(route: str, body: dict[str, Any], status: int, word: str) -> None:
    async with world() as there:
        got, said = await there.ask("POST", f"{CONTOSO}/{route}", {"path": NEWS, **body})
        assert (got, "\n" in said["error"], word in said["error"]) == (status, False, True), said
        assert [rule["name"] for rule in await there.get(f"{CONTOSO}/rules?path={NEWS}")] == ["$Default"]


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("create", {"kind": "queue", "path": "orders"}, 400),
        ("create", {"kind": "relay", "path": "x"}, 400),
        ("create", {"kind": "queue", "path": " "}, 400),
        ("create", {"kind": "subscription", "path": "news"}, 400),
        ("create", {"kind": "queue", "path": "x", "settings": {"lock_duration": "soon"}}, 400),
        ("create", {"kind": "queue", "path": "x", "settings": {"lock_duration": "99d"}}, 400),
        ("create", {"kind": "queue", "path": "x", "settings": {"max_delivery_count": "3"}}, 400),
        ("create", {"kind": "topic", "path": "x", "settings": {"lock_duration": "5s"}}, 400),
        ("create", {"kind": "queue", "path": "x", "settings": {"name": "y"}}, 400),
        ("change", {"path": "orders", "settings": {"requires_session": True}}, 400),
        ("change", {"path": "missing", "settings": {}}, 404),
        ("delete", {"path": "missing"}, 404),
        ("delete", {}, 404),
    ],
)
async def test_wrong_request_changes_nothing(route: str, body: dict[str, Any], status: int) -> None:
    async with world() as there:
        before = await _entities(there)
        got, said = await there.ask("POST", f"{CONTOSO}/{route}", body)
        assert (got, "\n" in said["error"]) == (status, False), said
        assert await _entities(there) == before


@pytest.mark.parametrize(
    ("method", "route", "body"),
    [
        ("GET", "settings?path=orders", None),
        ("POST", "change", {"path": "orders", "settings": {"max_delivery_count": 3}}),
        ("POST", "delete", {"path": "orders"}),
    ],
)
async def test_unknown_namespace_is_told_with_those_that_exist(method: str, route: str, body: Any) -> None:
    async with world() as there:
        got, said = await there.ask(method, f"namespaces/fabrikam/{route}", body)
        assert (got, said) == (404, {"error": "there is no namespace 'fabrikam'; there are: contoso"})


@pytest.mark.parametrize("route", ["create", "change", "delete", "create-rule", "change-rule", "delete-rule"])
async def test_foreign_page_cannot_change_entities(route: str) -> None:
    async with world() as there:
        before = await _entities(there)
        body = {"kind": "queue", "path": "orders", "settings": {"max_delivery_count": 1}}
        assert (await there.ask("POST", f"{CONTOSO}/{route}", body, headers={}))[0] == 403
        assert await _entities(there) == before


async def _entities(there: World) -> list[str]:
    found: dict[str, Any] = (await there.get("overview"))["namespaces"]["contoso"]["entities"]
    return sorted(found)


async def test_page_gets_the_settings_of_its_forms() -> None:
    """The page draws what the server reads: a setting that can be written in a form can be read from its entity."""
    async with world() as there:
        form = await there.get("entity-settings")
        names = {setting["name"] for setting in form["settings"] if "queue" in setting["kinds"]}
        assert names == set(await there.get(f"{CONTOSO}/settings?path=orders"))
        assert "SendDisabled" in form["statuses"]
