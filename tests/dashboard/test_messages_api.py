"""The verbs of the page, each checked by what the broker has afterwards."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pairbus.broker import QueueDescription
from pairbus.transport import Receiver, TransportError
from tests.dashboard.world import API, CHANGING, World, world

ORDERS = "namespaces/contoso"


async def browse(there: World, **query: Any) -> dict[str, Any]:
    text = "&".join(f"{name}={value}" for name, value in {"path": "orders", **query}.items())
    found: dict[str, Any] = await there.get(f"{ORDERS}/messages?{text}")
    return found


async def test_browse_from_any_number_and_page_by_page() -> None:
    async with world() as there:
        await there.put(*[f"body {at}" for at in range(30)])
        first = await browse(there, count=10)
        assert [row["body"] for row in first["messages"]] == [f"body {at}" for at in range(10)]
        second = await browse(there, count=10, **{"from": first["next"]})
        assert second["messages"][0]["body"] == "body 10"
        assert (await browse(there, **{"from": 31}))["messages"] == []


async def test_search_in_bodies_and_properties() -> None:
    async with world() as there:
        await there.put("apple", "pear", "PEAR tree")
        await there.put("quince", application_properties={"taste": "like pears", "price": 12})
        found = await browse(there, grep="pear")
        assert [row["body"] for row in found["messages"]] == ["pear", "PEAR tree", "quince"]
        assert found["next"] is None and found["scanned"] == 4
        found = await browse(there, where="price%20%3E%2010")
        assert [row["body"] for row in found["messages"]] == ["quince"]


async def test_message_in_full_has_typed_properties() -> None:
    async with world() as there:
        properties = {"a": {"type": "int", "value": "7"}, "b": True, "<b>": "<script>"}
        await there.put("hello", application_properties=properties)
        found = await there.get(f"{ORDERS}/message?path=orders&number=1")
        assert found["application_properties"]["a"] == {"type": "int", "value": "7"}
        assert found["application_properties"]["b"]["type"] == "boolean"
        assert found["body"] == "hello"
        status, _ = await there.ask("GET", f"{ORDERS}/message?path=orders&number=99")
        assert status == 404


async def test_edit_and_send_again_replaces_the_message() -> None:
    """The original is completed after the copy was accepted: one message, with the new body and the old properties."""
    async with world() as there:
        await there.put("wrong", application_properties={"kept": "yes"})
        await there.post(f"{ORDERS}/resend", {"path": "orders", "number": "1", "changes": {"body": "right"}})
        assert there.counts() == (1, 0)
        found = await there.get(f"{ORDERS}/message?path=orders&number=2")
        assert found["body"] == "right"
        assert found["application_properties"]["kept"]["value"] == "yes"


async def test_dead_letters_are_grouped_and_redriven_by_reason() -> None:
    async with world() as there:
        await there.put(*"abcde")
        await there.dead_letter(2, "Late")
        await there.dead_letter(1, "Broken")
        groups = await there.get(f"{ORDERS}/dead-letters?path=orders")
        assert [(group["reason"], group["count"]) for group in groups] == [("Late", 2), ("Broken", 1)]
        job = await there.job(f"{ORDERS}/redrive", {"path": "orders", "reasons": ["Late"]})
        assert (job["state"], job["done"]) == ("done", 2), job
        assert there.counts() == (4, 1)


async def test_move_purge_and_choice() -> None:
    async with world() as there:
        await there.put(*[f"body {at}" for at in range(10)])
        job = await there.job(f"{ORDERS}/move", {"path": "orders", "to": "other", "numbers": ["1", "2"]})
        assert job["state"] == "done", job
        assert (there.counts(), there.counts("other")) == ((8, 0), (2, 0))
        await there.job(f"{ORDERS}/purge", {"path": "orders", "grep": "body 9"})
        assert there.counts() == (7, 0)
        job = await there.job(f"{ORDERS}/purge", {"path": "orders", "all": True})
        assert (job["done"], there.counts()) == (7, (0, 0))


@pytest.mark.parametrize("verb", ["move", "purge"])
@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"last": 5},
        {"all": False},
        {"all": "yes"},
        {"all": True, "grep": "x"},
        {"grep": ""},
        {"where": ""},
        {"session": ""},
    ],
)
async def test_verb_without_a_choice_is_refused(verb: str, choice: dict[str, Any]) -> None:
    """A forgotten or empty condition must not mean every message."""
    async with world() as there:
        await there.put("one")
        status, said = await there.ask("POST", f"{ORDERS}/{verb}", {"path": "orders", "to": "other", **choice})
        assert (status, there.counts(), there.counts("other")) == (400, (1, 0), (0, 0)), said


@pytest.mark.parametrize("route", ["messages", "export", "count"])
@pytest.mark.parametrize("name", ["grep", "where", "session"])
async def test_empty_condition_is_an_error(route: str, name: str) -> None:
    """An export with an empty condition, before a purge with the same one, must not look like a backup."""
    async with world() as there:
        status, said = await there.ask("GET", f"{ORDERS}/{route}?path=orders&{name}=")
        assert (status, said["error"].startswith(f"{name} is empty")) == (400, True), said


@pytest.mark.parametrize("verb", ["move", "purge"])
@pytest.mark.parametrize("conditions", [{}, {"grep": "body 1"}], ids=["all", "a search"])
async def test_verb_takes_exactly_the_messages_that_were_counted(verb: str, conditions: dict[str, str]) -> None:
    """A dialog names the count; what arrives before the answer of the person stays."""
    async with world() as there:
        await there.put(*[f"body {at}" for at in range(12)], "other")
        query = "".join(f"&{name}={value.replace(' ', '%20')}" for name, value in conditions.items())
        counted = await there.get(f"{ORDERS}/count?path=orders{query}")
        assert (counted["count"], counted["is_all"]) == (3 if conditions else 13, True)
        await there.put("body 1 came late")
        choice: dict[str, Any] = {**(conditions or {"all": True}), "last": counted["last"]}
        job = await there.job(f"{ORDERS}/{verb}", {"path": "orders", "to": "other", **choice})
        assert (job["state"], job["done"]) == ("done", counted["count"]), job
        assert there.counts() == (14 - counted["count"], 0)


async def test_count_ends_in_time_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from pairbus.dashboard import verbs

    monkeypatch.setattr(verbs, "COUNT_S", 0.0)
    async with world() as there:
        await there.put(*[f"body {at}" for at in range(600)])
        counted = await there.get(f"{ORDERS}/count?path=orders&grep=body")
        assert 0 < counted["count"] < 600 and counted["is_all"] is False


async def test_chosen_messages_are_exported() -> None:
    async with world() as there:
        await there.put("one", "two", "three")
        asked = {"path": "orders", "numbers": ["1", "3"]}
        async with there.session.post(f"{there.url}{API}{ORDERS}/export", json=asked, headers=CHANGING) as answer:
            lines = (await answer.read()).splitlines()
        assert [json.loads(line)["body"] for line in lines] == ["one", "three"]


@pytest.mark.parametrize("verb", ["move", "purge"])
async def test_job_that_leaves_messages_is_incomplete(verb: str) -> None:
    """A job that says done while another receiver holds a message makes a person believe that the queue is empty."""
    async with world() as there:
        await there.put("locked")
        receiver = await there.carrier.receiver("orders", credit=1)
        assert len(await receiver.receive(1, 5.0)) == 1
        await receiver.pause()
        await there.put("free")
        job = await there.job(f"{ORDERS}/{verb}", {"path": "orders", "to": "other", "all": True})
        assert (job["state"], job["done"], job["left"]) == ("incomplete", 1, 1), job
        await receiver.close()


@pytest.mark.parametrize("verb", ["move", "purge"])
async def test_job_tells_messages_that_were_not_completed(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a move such a message is in both places; after a purge it is still there."""

    async def unanswered(self: Receiver, messages: Any, **options: Any) -> None:
        raise TransportError("no answer")

    async with world() as there:
        await there.put("one")
        monkeypatch.setattr(Receiver, "complete", unanswered)
        job = await there.job(f"{ORDERS}/{verb}", {"path": "orders", "to": "other", "where": "1 = 1"})
        assert (job["state"], job["uncompleted"]) == ("incomplete", 1), job


@pytest.mark.parametrize(
    ("method", "route", "body"),
    [
        ("GET", "export?path=orders&first=9999999999999999999", None),
        ("POST", "cancel", {"path": "orders", "numbers": [10**30]}),
        ("POST", "resend", {"path": "orders", "number": 10**30}),
        ("POST", "purge", {"path": "orders", "numbers": [1 << 63]}),
        ("POST", "move", {"path": "orders", "to": "other", "first": 10**30}),
        ("POST", "match", {"path": "news/Subscriptions/all", "from_path": "orders", "number": 10**25}),
        ("POST", "match", {"path": "news/Subscriptions/all", "from_path": "orders", "number": "9" * 5000}),
        ("POST", "send", {"path": "orders", "message": {"body": "x", "scheduled_enqueue_time": 10**30}}),
    ],
)
async def test_number_beyond_the_wire_is_refused(method: str, route: str, body: Any) -> None:
    """Sequence numbers and times have 64 bits."""
    async with world() as there:
        status, said = await there.ask(method, f"{ORDERS}/{route}", body)
        assert (status, "is " in said["error"]) == (400, True), said


async def test_fault_with_a_number_without_end_is_not_found() -> None:
    async with world() as there:
        assert (await there.ask("DELETE", f"{ORDERS}/faults/{'9' * 5000}"))[0] == 404


async def test_failed_move_tells_why_and_loses_nothing() -> None:
    async with world() as there:
        await there.put("one")
        job = await there.job(f"{ORDERS}/move", {"path": "orders", "to": "missing", "all": True})
        assert job["state"] == "failed" and "missing does not exist in" in job["error"], job
        assert there.counts() == (1, 0)


async def test_export_and_import_keep_every_message() -> None:
    async with world() as there:
        await there.put("one", "two", application_properties={"price": {"type": "int", "value": "3"}})
        async with there.session.get(f"{there.url}{API}{ORDERS}/export?path=orders", headers=CHANGING) as answer:
            lines = await answer.read()
            assert "attachment" in answer.headers["Content-Disposition"]
        assert [json.loads(line)["body"] for line in lines.splitlines()] == ["one", "two"]
        url = f"{there.url}{API}{ORDERS}/import?path=other"
        async with there.session.post(url, data=lines, headers=CHANGING) as answer:
            job = await there.end_of(await answer.json())
        assert (job["state"], job["done"]) == ("done", 2), job
        assert (there.counts(), there.counts("other")) == ((2, 0), (2, 0))
        found = await there.get(f"{ORDERS}/message?path=other&number=1")
        assert found["application_properties"]["price"] == {"type": "int", "value": "3"}


async def test_import_of_something_else_is_told() -> None:
    async with world() as there:
        url = f"{there.url}{API}{ORDERS}/import?path=other"
        async with there.session.post(url, data=b"no json\n", headers=CHANGING) as answer:
            job = await there.end_of(await answer.json())
        assert job["state"] == "failed" and "line 1" in job["error"]


async def test_interrupted_import_goes_on_behind_the_last_accepted_line() -> None:
    """The job says how far it came; the same file goes on there, and another one is refused."""
    lines = [f'{{"message_id": "m{at}", "body": "x"}}\n'.encode() for at in range(20)]
    async with world() as there:
        url = f"{there.url}{API}{ORDERS}/import"
        broken = b"".join(lines[:12]) + b"no json\n"
        async with there.session.post(url, params={"path": "other"}, data=broken, headers=CHANGING) as answer:
            job = await there.end_of(await answer.json())
        assert job["state"] == "failed" and job["resume"]["lines"] == 12 and there.counts("other") == (12, 0), job
        asked = {"path": "other", **job["resume"]}
        async with there.session.post(url, params=asked, data=b"x" * 2000, headers=CHANGING) as answer:
            assert answer.status == 400 and "was changed" in await answer.text()
        async with there.session.post(url, params=asked, data=b"".join(lines), headers=CHANGING) as answer:
            job = await there.end_of(await answer.json())
        assert (job["state"], job["done"], "resume" in job) == ("done", 8, False), job
        found = await there.get(f"{ORDERS}/messages?path=other&count=50")
        assert [row["message_id"] for row in found["messages"]] == [f"m{at}" for at in range(20)]


async def test_backlog_queue_has_the_age_of_its_oldest_message() -> None:
    """On the page of a broker too, which shows one namespace of the pair."""
    path = "contoso/x-servicebus-transfer/0"
    async with world() as there:
        await there.broker.namespace("contoso").create(QueueDescription(path))
        await there.put("waits", path=path)
        await there.post(f"{ORDERS}/clock", {"advance_seconds": 90})
        async with asyncio.timeout(20):
            while "oldest_s" not in (backlog := (await there.get("overview"))["pair"]["backlog"]):
                pass
        assert backlog["messages"] == 1 and 90 <= backlog["oldest_s"] < 120
        assert backlog["by_queue"][path]["oldest_s"] == backlog["oldest_s"]


async def test_sessions_schedule_rules_and_clock() -> None:
    async with world() as there:
        await there.put("a", path="meetings", session_id="monday")
        found = await there.get(f"{ORDERS}/sessions?path=meetings")
        assert [(one["session_id"], one["is_locked"]) for one in found["sessions"]] == [("monday", False)]
        await there.put("later", scheduled_enqueue_time="2100-01-01T00:00:00Z")
        scheduled = await there.get(f"{ORDERS}/scheduled?path=orders")
        assert scheduled["messages"][0]["scheduled_enqueue_time"].startswith("2100-01-01")
        assert there.counts() == (0, 0)
        await there.post(f"{ORDERS}/clock", {"advance_to": "2100-01-01T00:00:01Z"})
        assert there.counts() == (1, 0)
        rules = await there.get(f"{ORDERS}/rules?path=news/Subscriptions/all")
        assert [rule["name"] for rule in rules] == ["$Default"]
        match = await there.post(f"{ORDERS}/match", {"path": "news/Subscriptions/all", "message": {"body": "x"}})
        assert match["matches"] is True


async def test_faults_are_switched_and_watchers_hear_of_it() -> None:
    """The watch tells everything at first, then what changed: a thousand quiet entities cost nothing."""
    async with world() as there:
        async with there.session.get(f"{there.url}{API}watch", headers=CHANGING) as stream:
            assert stream.headers["Content-Type"].startswith("text/event-stream")
            heard = asyncio.create_task(_heard(stream, "fault on in contoso"))
            fault = await there.post(f"{ORDERS}/faults", {"kind": "throttle", "entity": "other"})
            patches = await asyncio.wait_for(heard, 10)
        assert "orders" not in patches
        assert [one["kind"] for one in there.broker.namespace("contoso").faults.list()] == ["throttle"]
        assert (await there.ask("DELETE", f"{ORDERS}/faults/{fault['id']}"))[1] == {"cleared": 1}
        assert (await there.ask("DELETE", f"{ORDERS}/faults/{fault['id']}"))[0] == 404


async def _heard(stream: Any, text: str) -> str:
    """Read events until one has the text; return the patches that came before."""
    patches = ""
    async for line in stream.content:
        if line.startswith(b"event: "):
            kind = line.split()[1]
        elif line.startswith(b"data: "):
            if kind == b"patch":
                patches += line.decode()
            if kind == b"happened" and text in line.decode():
                return patches
    raise AssertionError(f"the stream ended without {text!r}")


async def test_overview_has_entities_counts_and_states() -> None:
    async with world() as there:
        await there.put("one", "two")
        found = await there.get("overview")
        assert found["namespaces"]["contoso"]["entities"]["orders"]["active"] == 2
        assert found["namespaces"]["contoso"]["entities"]["news/Subscriptions/all"]["kind"] == "subscription"
        assert found["on_broker"] is True


async def test_broker_stops_at_once_although_a_page_watches() -> None:
    """An open page must not hold up a restart."""
    async with world() as there:
        stream = await there.session.get(f"{there.url}{API}watch", headers=CHANGING)
        assert (await stream.content.readline()).startswith(b"event: look")
        await there.put(*["x"] * 50)
        began_s = asyncio.get_running_loop().time()
        await there.broker.stop()
        assert asyncio.get_running_loop().time() - began_s < 1.9, "requests under way have 2 s"
        stream.close()


async def test_cancelled_job_loses_nothing_and_holds_nothing() -> None:
    async with world() as there:
        await there.put(*[f"body {at}" for at in range(500)])
        began = await there.post(f"{ORDERS}/move", {"path": "orders", "to": "other", "where": "1 = 1"})
        await there.ask("DELETE", f"jobs/{began['number']}")
        job = await there.end_of(began)
        assert job["state"] in ("cancelled", "done"), job
        assert there.counts()[0] + there.counts("other")[0] >= 500
        left = await there.job(f"{ORDERS}/purge", {"path": "orders", "all": True})
        assert there.counts() == (0, 0), left
