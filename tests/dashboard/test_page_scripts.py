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
const draw = () => { nodes = page.entityView("contoso", "orders", "", draw); };
draw();
await settled();
find(nodes, (one) => one.given["aria-label"] === "Choose 2").onchange({ target: { checked: true } });
const press = (action) => find(nodes, (one) => one.given["data-action"] === action).onclick();
"""


def run(folder: Path, script: str) -> Any:
    """Run a script beside those of the page; return the JSON that it prints."""
    shutil.copytree(STATIC, folder, dirs_exist_ok=True)
    shutil.copy(STUB, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "test.mjs").write_text(script)
    done = subprocess.run(["node", "test.mjs"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("verb", ["purge", "move"])
@pytest.mark.parametrize(
    "meanwhile",
    [
        'state.jobs.set(1, { number: 1, state: "done" }); page.refreshEntity(draw);',
        "page.leaveEntity();",
    ],
    ids=["a job ends", "Back is pressed"],
)
def test_dialog_acts_on_the_messages_that_it_names(tmp_path: Path, verb: str, meanwhile: str) -> None:
    """A request without a choice means all messages: what happens behind the dialog must not take the choice away."""
    script = f"""{OPENED}
    press("{verb}");
    const asked = dialogBox().text;
    {meanwhile}
    await submit(dialogBox());
    console.log(JSON.stringify({{ asked, posted }}));
    """
    found = run(tmp_path, script)
    assert "1 chosen message" in found["asked"]
    [[route, sent]] = found["posted"]
    assert (route, sent.get("path"), sent.get("numbers")) == (verb, "orders", ["2"])


def test_job_says_which_messages_are_left_and_which_are_there_twice(tmp_path: Path) -> None:
    script = """
    const { jobText } = await import("./words.js");
    const move = { verb: "move", state: "incomplete", done: 3, left: 2, uncompleted: 1, notes: ["s is locked"] };
    const purge = { verb: "purge", state: "incomplete", done: 1, uncompleted: 1 };
    console.log(JSON.stringify([jobText(move), jobText(purge)]));
    """
    moved, purged = run(tmp_path, script)
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
