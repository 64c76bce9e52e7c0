"""Two looks compared: patches are exact, and events say what happened."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pairbus.dashboard.cost import running_cost, visible_operations
from pairbus.dashboard.facts import pair_facts, same_namespace
from pairbus.dashboard.news import backlog_of, happenings, patch_of, patched
from pairbus.ledger.prices import load

LEAVES = st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=1)
INNER = st.dictionaries(st.sampled_from("ab"), LEAVES, max_size=2)
LOOKS = st.dictionaries(
    st.sampled_from("abc"), LEAVES | INNER | st.dictionaries(st.sampled_from("ab"), INNER, max_size=2), max_size=3
)


@given(LOOKS, LOOKS)
def test_patch_makes_the_later_look_of_the_earlier(before: dict[str, Any], after: dict[str, Any]) -> None:
    """A browser that missed nothing has exactly what the server has."""
    assert patched(before, patch_of(before, after)) == after


def test_patch_of_equal_looks_is_empty() -> None:
    look = {"namespaces": {"a": {"entities": {f"q{at}": {"active": at} for at in range(1000)}}}}
    changed = {"namespaces": {"a": {"entities": {**look["namespaces"]["a"]["entities"], "q7": {"active": 8}}}}}
    assert patch_of(look, look) == {}
    assert patch_of(look, changed) == {"namespaces": {"a": {"entities": {"q7": {"active": 8}}}}}


def look(**namespace: Any) -> dict[str, Any]:
    pair = namespace.pop("pair", {})
    return {"namespaces": {"contoso": {"reachable": True, "entities": {}, "faults": [], **namespace}}, "pair": pair}


def test_outage_and_recovery_are_events() -> None:
    """An operator reads the list of events like a diary."""
    fault = {"id": 1, "kind": "refuse", "entity": None, "direction": None}
    well = look(pair={"entities": {"orders": {"state": "HEALTHY"}}, "backlog": {"messages": 0}})
    away = look(
        reachable=False,
        error="refused",
        faults=[fault],
        pair={"entities": {"orders": {"state": "FAILED_OVER", "cause": "timeout"}}, "backlog": {"messages": 3}},
    )
    assert [one.text for one in happenings(well, away)] == [
        "contoso is away: refused",
        "fault on in contoso: refuse",
        "orders: failed over (timeout)",
        "messages wait in backlog queues: 3",
    ]
    assert [one.text for one in happenings(away, well)] == [
        "contoso answers again",
        "fault off in contoso: refuse",
        "orders: healthy again",
        "the backlog is drained",
    ]


def test_dead_letters_and_new_entities_are_events() -> None:
    before = look(entities={"orders": {"dead": 1}})
    after = look(entities={"orders": {"dead": 3}, "new": {"dead": 0}})
    assert [one.text for one in happenings(before, after)] == [
        "created in contoso: new",
        "2 messages dead-lettered in orders",
    ]


def test_state_of_an_entity_is_the_worst_of_its_clients() -> None:
    """Two applications may see different things; the operator must see the trouble."""

    def client(state: str, for_s: float, sent: int) -> dict[str, Any]:
        entity = {"path": "orders", "state": state, "for_s": for_s, "sent": sent, "cause": "x"}
        return {"role": "client", "pid": 1, "program": "app", "paired": True, "ended": "", "entities": [entity]}

    found = pair_facts([client("HEALTHY", 100, 5), client("FAILED_OVER", 10, 2)], 1000.0)
    assert found["entities"]["orders"] | {"cause": ""} == {
        **dict.fromkeys(("diverted", "spooled", "failed", "pings", "failovers"), 0),
        "state": "FAILED_OVER",
        "since_s": 990,
        "clients": 2,
        "sent": 7,
        "cause": "",
    }


def test_backlog_counts_only_queues_of_the_primary() -> None:
    queue = {"active": 2, "dead": 1}
    entities = {"contoso/x-servicebus-transfer/0": queue, "other/x-servicebus-transfer/0": queue, "orders": queue}
    of_contoso = {"contoso/x-servicebus-transfer/0": {"messages": 2, "dead": 1}}
    assert backlog_of(entities, "contoso") == {"queues": 1, "messages": 2, "dead": 1, "by_queue": of_contoso}
    assert backlog_of(entities)["messages"] == 4 and len(backlog_of(entities)["by_queue"]) == 2


def test_backlog_has_the_age_of_each_queue_that_is_not_empty() -> None:
    """The oldest of all is the age of the backlog."""
    paths = [f"contoso/x-servicebus-transfer/{number}" for number in range(3)]
    entities = {path: {"active": 2 - number} for number, path in enumerate(paths)}
    found = backlog_of(entities, "contoso", {paths[0]: 4.6, paths[1]: 8.2, paths[2]: 99.0})
    assert [one["oldest_s"] for one in found["by_queue"].values()] == [5, 8]
    assert found["oldest_s"] == 8


def test_loopback_names_are_one_namespace() -> None:
    assert same_namespace("localhost:5672", "127.0.0.1:5672")
    assert not same_namespace("localhost:5672", "localhost:5673")
    assert same_namespace("Contoso.servicebus.windows.net", "contoso.servicebus.windows.net")
    assert not same_namespace(None, "localhost:5672"), "a single client has no secondary"


def test_running_cost_prices_what_meters_counted() -> None:
    sheet = load("standard")
    assert running_cost([], sheet) is None
    found = running_cost([{"send": [2, 1_000_000, 5]}, {"send": [1, 1, 1], "peek": [3, 3, 0]}], sheet)
    assert found is not None
    assert found["by_kind"] == {"send": 1_000_001, "peek": 3}
    assert float(found["amount"]) > 0


def test_cost_on_azure_is_what_is_visible_and_the_base_charge() -> None:
    """Azure tells nobody its operations: the page prices those that it can count, and calls that partial."""
    pair = {
        "entities": {"orders": {"sent": 1_000_000, "diverted": 20, "pings": 3}},
        "syphons": [{"moved": 10}, {"error": "busy"}],
    }
    both = visible_operations(pair, {"primary": 4, "secondary": 5})
    assert both == {
        "administration by this page": 9,
        "sends of paired clients": 1_000_000,
        "pings": 3,
        "sends to the backlog": 20,
        "receives of syphons": 10,
        "sends of syphons": 10,
    }
    assert visible_operations(pair, {"secondary": 0}) == {"sends to the backlog": 20, "receives of syphons": 10}
    assert visible_operations(pair, {None: 7}) == {"administration by this page": 7}
    found = running_cost([], load("standard"), both, 2)
    assert found is not None and found["is_partial"]
    assert (found["billable_operations"], found["amount"], found["base_per_month"]) == (1_000_052, "0.8000", "10.00")
