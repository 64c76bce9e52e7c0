"""The scripts of the page without a browser: what they send to the server when a person answers a dialog."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import pairbus.dashboard

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(shutil.which("node") is None, reason="the scripts of the page are not tested: node not found"),
]

STATIC = Path(pairbus.dashboard.__file__).parent / "static"
STUB = Path(__file__).with_name("stub_page.mjs")

OPENED = """
import { answers, body, dialogBox, find, posted, settled, submit } from "./stub_page.mjs";
const { state } = await import("./store.js");
const page = await import("./entity.js");
const entities = { orders: { kind: "queue", active: 4, dead: 0 } };
state.look = { title: "contoso", time_ms: 0, namespaces: { contoso: { entities } } };
const rows = ["1", "2", "3", "4"].map((number) => ({ sequence_number: number, state: "active", body: "b" }));
answers.messages = { messages: rows, next: null, scanned: 4 };
let nodes;
const { placeOf } = await import("./address.js");
location.hash = "#/entity/contoso/orders";
const draw = () => { nodes = page.entityView(placeOf(location.hash), draw); };
draw();
await settled();
const control = (action) => find(nodes, (one) => one.given["data-action"] === action);
const press = async (action) => { control(action).onclick(); await settled(); };
const choose = (label) =>
  find(nodes, (one) => one.given["aria-label"] === label).onchange({ target: { checked: true } });
"""


def run(folder: Path, script: str) -> Any:
    """Run a script beside those of the page; return the JSON that it prints."""
    shutil.copytree(STATIC, folder, dirs_exist_ok=True)
    shutil.copy(STUB, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "test.mjs").write_text(f"{script}\nprocess.exit();")  # timers of the page do not hold it up
    done = subprocess.run(["node", "test.mjs"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("verb", ["purge", "move"])
@pytest.mark.parametrize(
    "meanwhile",
    [
        'state.jobs.set(1, { number: 1, state: "done" }); page.refreshEntity();',
        "page.leaveEntity();",
    ],
    ids=["a job ends", "Back is pressed"],
)
def test_dialog_acts_on_the_messages_that_it_names(tmp_path: Path, verb: str, meanwhile: str) -> None:
    """A request without a choice means all messages: what happens behind the dialog must not take the choice away."""
    script = f"""{OPENED}
    choose("Choose 2");
    await press("{verb}");
    const asked = dialogBox().text;
    {meanwhile}
    await submit(dialogBox());
    console.log(JSON.stringify({{ asked, posted }}));
    """
    found = run(tmp_path, script)
    assert "1 message of queue orders in contoso? You have chosen them in the list: number 2." in found["asked"]
    [[route, sent]] = found["posted"]
    assert (route, sent.get("path"), sent.get("numbers")) == (verb, "orders", ["2"])


SEARCH = "?grep=late&where=amount+%3E+10"


@pytest.mark.parametrize(
    ("query", "chosen", "words"),
    [
        ("", {"all": True}, "They are all that are there, on all pages of the list."),
        (
            SEARCH,
            {"grep": "late", "where": "amount > 10"},
            "contain “late” and meet the filter amount > 10, on all pages",
        ),
    ],
    ids=["no search", "a search"],
)
@pytest.mark.parametrize("verb", ["purge", "move", "export"])
def test_page_of_the_list_is_no_condition_of_a_verb(
    tmp_path: Path, verb: str, query: str, chosen: dict[str, Any], words: str
) -> None:
    """On page 2 a verb takes the messages of page 1 too: so the dialog says, and so an export before a purge must."""
    script = f"""{OPENED}
    answers.messages = {{ messages: rows, next: "51", scanned: 4 }};
    answers.count = {{ count: 57, is_all: true, last: "60" }};
    location.hash += "{query}";
    page.leaveEntity();
    draw();
    await settled();
    await press("next");
    const address = location.hash;
    draw();
    await settled();
    await press("{verb}");
    const asked = "{verb}" === "export" ? "" : dialogBox().text;
    if (asked) await submit(dialogBox());
    console.log(JSON.stringify({{ address, asked, posted }}));
    """
    found = run(tmp_path, script)
    assert "from=51" in found["address"]
    [[route, sent]] = found["posted"]
    if verb == "export":
        chosen = {name: value for name, value in chosen.items() if name != "all"}
    else:
        chosen = chosen | {"last": "60", "expected": 57}
        assert "57 messages of queue orders in contoso? " in found["asked"] and words in found["asked"]
    given = {name: value for name, value in sent.items() if name not in ("path", "to", "to_namespace")}
    assert (route, sent["path"], given) == (verb, "orders", chosen)


QUEUE = {"kind": "queue", "active": 1, "dead": 0}
WELL = {"reachable": True, "entities": {"orders": QUEUE}}


@pytest.mark.parametrize(
    ("namespace", "link", "headline"),
    [
        (WELL, "live", "contoso is well"),
        (WELL, "lost", "contoso does not answer"),
        ({**WELL, "reachable": False}, "live", "contoso is away"),
        ({**WELL, "entities": {"orders": {**QUEUE, "dead": 3}}}, "live", "3 dead letters"),
        ({**WELL, "clock": {"offset_seconds": 1209600.0}}, "live", "contoso: clock 14 d ahead"),
        ({**WELL, "faults": [{"id": 1, "kind": "refuse"}]}, "live", "1 fault switched on"),
    ],
)
def test_headline_says_well_only_when_all_is_well(
    tmp_path: Path, namespace: dict[str, Any], link: str, headline: str
) -> None:
    script = f"""
    import "./stub_page.mjs";
    const {{ state }} = await import("./store.js");
    const {{ headline }} = await import("./overview.js");
    state.look = {{ title: "contoso", namespaces: {{ contoso: {json.dumps(namespace)} }} }};
    Object.assign(state, {{ link: "{link}", onBroker: true }});
    console.log(JSON.stringify(headline(state.look)[0]));
    """
    assert run(tmp_path, script) == headline


SWITCHES = """
import { dialogBox, find, posted, submit } from "./stub_page.mjs";
const { state } = await import("./store.js");
const switches = await import("./switches.js");
const clock = { now: "2030-01-01T00:00:00Z", offset_seconds: 0 };
const one = { can_switch: true, faults: [], clock, entities: { orders: { active: 7, scheduled: 2 } } };
state.look = { title: "contoso", namespaces: { contoso: one } };
const press = (nodes, is) => find(nodes, is).onclick();
"""


@pytest.mark.parametrize(("on_broker", "lasts"), [("false", "2m"), ("true", "30s")])
def test_outage_asks_first_and_ends_by_itself(tmp_path: Path, on_broker: str, lasts: str) -> None:
    script = f"""{SWITCHES}
    state.onBroker = {on_broker};
    press(switches.outageButton("contoso", one), (control) => control.given["data-action"] === "start-outage");
    const before = posted.length, asked = dialogBox().text;
    await submit(dialogBox());
    console.log(JSON.stringify({{ before, asked, posted }}));
    """
    found = run(tmp_path, script)
    assert found["before"] == 0 and "contoso refuses new connections and cuts those that are open" in found["asked"]
    assert found["posted"] == [["faults", {"kind": "refuse", "for_s": lasts}]]


def test_clock_asks_before_it_moves(tmp_path: Path) -> None:
    """It never goes back, and what falls due until then is gone or changed."""
    script = f"""{SWITCHES}
    press(switches.faults(() => {{}}), (control) => control.given["data-seconds"] === "1209600");
    const before = posted.length, asked = dialogBox().text;
    await submit(dialogBox());
    console.log(JSON.stringify({{ before, asked, posted }}));
    """
    found = run(tmp_path, script)
    assert found["before"] == 0
    for words in ("clock of contoso forward by 14 d", "7 active messages", "cannot be moved back"):
        assert words in found["asked"]
    assert found["posted"] == [["clock", {"advance_seconds": 1209600}]]


def test_counts_of_a_namespace_that_is_away_have_their_time(tmp_path: Path) -> None:
    script = """
    import { find } from "./stub_page.mjs";
    const { state } = await import("./store.js");
    const { overview } = await import("./overview.js");
    const entities = { orders: { kind: "queue", active: 116, dead: 0, size_bytes: 0 } };
    const one = { reachable: false, error: "no answer", counts_as_of_ms: 1, entities };
    state.look = { title: "contoso", time_ms: 2, namespaces: { contoso: one } };
    const drawn = overview(() => {});
    const old = (text) => Boolean(find(drawn, (each) => /\\bold\\b/.test(each.given.class) && each.text === text));
    const told = find(drawn, (each) => each.text.startsWith("its counts are those of")) !== undefined;
    console.log(JSON.stringify([old("116"), told]));
    """
    assert run(tmp_path, script) == [True, True]


RULES = """
import { dialogBox, find, posted, settled, submit } from "./stub_page.mjs";
const { rules } = await import("./rules.js");
const amount = { type: "int", value: "5" };
const known = [
  { name: "dear", filter: "sql", expression: "amount > 10", action: "SET seen = TRUE" },
  { name: "paint", filter: "correlation", fields: { label: "paint" }, properties: { amount } },
];
const view = { extra: known };
const here = { namespace: "contoso", path: "news/Subscriptions/eu", view, redraw() {}, reload() {} };
const isFor = (one, action, rule) => one.given["data-action"] === action && one.given["data-rule"] === rule;
const press = (action, rule) => find(rules(here), (one) => isFor(one, action, rule)).onclick();
const write = (name, text) => { find(dialogBox(), (one) => one.given.name === name).value = text; };
const send = async () => { await submit(dialogBox()); await settled(); };
"""


def test_rules_are_created_changed_and_deleted_by_their_dialogs(tmp_path: Path) -> None:
    """Properties keep their types, and the dialog of a deletion says how many rules stay."""
    script = f"""{RULES}
    press("new-rule");
    write("name", "cheap"); write("filter", "sql"); write("expression", "amount < 3");
    await send();
    press("change-rule", "paint");
    write("filter", "correlation"); write("to", "eu");
    await send();
    press("delete-rule", "dear");
    const asked = dialogBox().text;
    await send();
    console.log(JSON.stringify({{ posted, asked }}));
    """
    found = run(tmp_path, script)
    path = {"path": "news/Subscriptions/eu"}
    amount = {"amount": {"type": "int", "value": "5"}}
    assert found["posted"] == [
        ["create-rule", path | {"name": "cheap", "filter": "sql", "expression": "amount < 3"}],
        [
            "change-rule",
            path
            | {
                "name": "paint",
                "filter": "correlation",
                "fields": {"label": "paint", "to": "eu"},
                "properties": amount,
            },
        ],
        ["delete-rule", path | {"name": "dear"}],
    ]
    assert "Delete the rule dear of news/Subscriptions/eu in contoso? 1 rule stays." in found["asked"]


def test_backlog_queues_are_folded_and_last_and_events_are_links(tmp_path: Path) -> None:
    """No stranger may take them for queues of an application; what an event names is one click away."""
    script = """
    import { find } from "./stub_page.mjs";
    const { state } = await import("./store.js");
    const { overview } = await import("./overview.js");
    const orders = { kind: "queue", active: 1, dead: 2 };
    const entities = { "contoso/x-servicebus-transfer/1": { kind: "queue", active: 7, dead: 0 }, orders };
    state.look = { title: "fabrikam", time_ms: 2, namespaces: { fabrikam: { reachable: true, entities } } };
    state.happened = [{ time_ms: 1, kind: "dead-letter", entity: "orders", text: "orders has 2 dead letters" }];
    const drawn = overview(() => {});
    const folded = find(drawn.at(-1), (one) => one.nodeName === "DETAILS");
    const above = drawn.slice(0, -1).map((one) => one.text).join();
    const link = find(drawn, (one) => one.text === "orders" && /dead-letters$/.test(one.given.href));
    const found = [folded.given.open ?? null, folded.text.includes("transfer/1"), above.includes("transfer/1")];
    console.log(JSON.stringify([...found, link.given.href]));
    """
    assert run(tmp_path, script) == [None, True, False, "#/entity/fabrikam/orders/dead-letters"]


def test_no_dialog_asks_to_delete_nothing(tmp_path: Path) -> None:
    script = f"""{OPENED}
    answers.count = {{ count: 0, is_all: true, last: null }};
    await press("purge");
    console.log(JSON.stringify(dialogBox()?.text ?? null));
    """
    assert run(tmp_path, script) == "there are no messages"


def test_all_messages_of_a_page_are_chosen_at_once(tmp_path: Path) -> None:
    script = f"""{OPENED}
    choose("Choose all messages of this page");
    await press("purge");
    await submit(dialogBox());
    console.log(JSON.stringify(posted));
    """
    [[_, sent]] = run(tmp_path, script)
    assert sent["numbers"] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a":1e400,"b":[1,{"c":"x,\\"{y"}],"d":{}, "e": 12345678901234567890}', 11),
        ("[ ]", 1),
        ("[1,2]", 4),
        ("12", None),
        ("{broken", None),
        (None, None),
    ],
)
def test_json_is_indented_and_keeps_every_letter(tmp_path: Path, text: str | None, shown: int | None) -> None:
    """A number that JavaScript would round, and a text with brackets, stay as they were sent."""
    script = f"""
    const {{ indented }} = await import("./words.js");
    console.log(JSON.stringify(indented({json.dumps(text)})));
    """
    found = run(tmp_path, script)
    if shown is None or text is None:
        assert found is None
    else:
        assert "".join(found.split()) == "".join(text.split())
        assert len(found.splitlines()) == shown


def test_job_says_which_messages_are_left_and_which_are_there_twice(tmp_path: Path) -> None:
    script = """
    const { jobText } = await import("./words.js");
    const move = { verb: "move", state: "incomplete", done: 3, left: 2, uncompleted: 1, notes: ["s is locked"] };
    const purge = { verb: "purge", state: "incomplete", done: 1, uncompleted: 1 };
    const under = { verb: "move", state: "running", done: 3, total: 57 };
    console.log(JSON.stringify([jobText(move), jobText(purge), jobText(under)]));
    """
    moved, purged, under_way = run(tmp_path, script)
    assert under_way == "3 of 57 messages"
    assert moved == "incomplete: 3 messages; 2 left; 1 of them could not be completed: in both places; s is locked"
    assert purged == "incomplete: 1 message; 1 of them could not be completed: still there"


EDITED = """
import { dialogBox, find, posted, submit } from "./stub_page.mjs";
const { sendForm } = await import("./message.js");
const here = (tab) => ({ namespace: "contoso", path: "orders", source: "orders", tab });
const properties = { DeadLetterReason: { type: "string", value: "mine" }, amount: { type: "int", value: "5" } };
const original = { sequence_number: "7", body: "a\\r\\nb", body_type: "text", subject: "two\\nlines" };
original.application_properties = properties;
const write = (name, text) => { find(dialogBox(), (one) => one.given.name === name).value = text; };
const told = () => console.log(JSON.stringify(posted.map(([, sent]) => sent.changes)));
"""


def test_edit_sends_only_what_was_edited(tmp_path: Path) -> None:
    """Controls of a form change line ends: compared with the message, a body that nobody touched would be altered."""
    script = f"""{EDITED}
    sendForm(here(""), original, () => {{}});
    write("message_id", "new");
    await submit(dialogBox());
    told();
    """
    assert run(tmp_path, script) == [{"message_id": "new"}]


def test_edited_body_keeps_its_line_ends(tmp_path: Path) -> None:
    script = f"""{EDITED}
    sendForm(here(""), original, () => {{}});
    write("body", "a\\nc");
    await submit(dialogBox());
    told();
    """
    assert run(tmp_path, script) == [{"body": "a\r\nc", "body_type": "text"}]


@pytest.mark.parametrize("tab", ["", "dead-letters"])
def test_reason_is_left_out_of_dead_letters_only(tmp_path: Path, tab: str) -> None:
    """The service has set it there; elsewhere it is a property of the sender."""
    script = f"""{EDITED}
    sendForm(here("{tab}"), original, () => {{}});
    const shown = find(dialogBox(), (one) => one.given.name === "properties").value;
    write("properties", shown.replace('"5"', '"6"'));
    await submit(dialogBox());
    told();
    """
    [changes] = run(tmp_path, script)
    assert changes["application_properties"]["amount"] == {"type": "int", "value": "6"}
    assert ("DeadLetterReason" in changes["application_properties"]) is (tab == "")
