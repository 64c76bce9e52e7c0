"""The documents are true: their code runs, their links lead somewhere, and nothing that a user can meet is missing."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from tools import draw_states, write_cli_docs

import pairbus
from pairbus.amqp.errors import ProtocolError
from pairbus.backlog.aliases import RESERVED
from pairbus.backlog.envelope import Envelope, overhead
from pairbus.broker.config.file import parse_config
from pairbus.cli import main
from pairbus.cli.demo.book import MEANINGS, DemoVerdict
from pairbus.client.event_outbox import DETAILS, WARNINGS
from pairbus.client.results import COUNTER_MAX
from pairbus.errors import PairbusError
from pairbus.pairing import events
from pairbus.pairing.options import CHOICES, RANGES, SendAvailabilityPairedNamespaceOptions
from tests.brokers import BrokerProcess
from tests.pages import PAGES, ROOT, Block, blocks, blocks_of, text_of
from tests.test_tidy import MAY_IMPORT

JS_FOLDER = ROOT / "tests" / "sdk" / "js"
RUN_S = 60


def run(command: list[str], folder: Path, text: str | None = None, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reader")


@pytest.fixture(scope="module")
def reader(folder: Path) -> Iterator[BrokerProcess]:
    """The broker that the documents tell a reader to start, seen from the folder in which they started it."""
    config = {"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [{"Name": "orders"}]}]}}
    with BrokerProcess(folder / "pairbus-data", namespaces=["contoso", "fabrikam"], config=config) as process:
        yield process


# ── code ──


def test_the_embedded_broker_of_the_page_runs(tmp_path: Path) -> None:
    """The program runs in an empty folder; its message comes back, and is kept."""
    [block] = blocks_of("test_the_embedded_broker_of_the_page_runs")
    assert "a book" in run([sys.executable, "-c", block.text], tmp_path)
    assert (tmp_path / "bus" / "contoso" / "messages.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks_of("test_python_code_runs_against_the_broker"), ids=str)
def test_python_code_runs_against_the_broker(block: Block, folder: Path, reader: BrokerProcess) -> None:
    """The connection string is in the environment and the certificate in the data folder, as the pages say."""
    names = ("CONNECTION_STRING", "contoso"), ("PRIMARY", "contoso"), ("SECONDARY", "fabrikam")
    given = {f"PAIRBUS_{name}": reader.connection_string(namespace) for name, namespace in names}
    run([sys.executable, "-c", block.text], folder, **given)


@pytest.mark.node
@pytest.mark.skipif(
    shutil.which("node") is None, reason="the JavaScript of docs/broker.md is not tested: node not found"
)
def test_javascript_code_runs_against_the_broker(reader: BrokerProcess) -> None:
    """The packages are those of the JavaScript SDK's own tests, once these have installed them."""
    if not (JS_FOLDER / "node_modules" / "@azure" / "service-bus").exists():
        pytest.skip("the JavaScript of docs/broker.md is not tested: @azure/service-bus is not installed yet")
    [block] = blocks_of("test_javascript_code_runs_against_the_broker")
    run(
        ["node", "--input-type=module"],
        JS_FOLDER,
        block.text,
        PAIRBUS_CONNECTION_STRING=reader.connection_string(),
        NODE_EXTRA_CA_CERTS=str(reader.ca_file),
    )
    with reader.admin() as admin:
        assert admin.get_queue_runtime_properties("receipts").total_message_count == 0


NAMESPACES = (("PRIMARY", "contoso"), ("SECONDARY", "fabrikam"))
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name != "namespaces.py"]
"All but `namespaces`, which the examples import."


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs_twice(example: Path, tmp_path: Path) -> None:
    """A reader will run it again, on the state that the first run left."""
    first = run([sys.executable, str(example)], tmp_path)
    assert first and run([sys.executable, str(example)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["send_with_failover.py", "async_sender.py", "redrive_dead_letters.py"])
def test_an_example_leaves_a_namespace_of_the_readers_as_it_was(name: str, tmp_path: Path) -> None:
    """A reader may have queues with the names of the example, with messages and dead letters."""
    theirs = ["orders", "payments"]
    config = {"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [{"Name": one} for one in theirs]}]}}
    with BrokerProcess(tmp_path / "data", namespaces=["contoso", "fabrikam"], config=config) as process:
        with ServiceBusClient.from_connection_string(process.connection_string()) as client:
            for queue in theirs:
                with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
                    sender.send_messages([ServiceBusMessage("a dead letter"), ServiceBusMessage("an order")])
                    receiver.dead_letter_message(receiver.receive_messages(1)[0])
        before = counts(process)
        assert before == dict.fromkeys(theirs, (1, 1))
        pair = {f"PAIRBUS_{side}": process.connection_string(one) for side, one in NAMESPACES}
        assert run([sys.executable, str(ROOT / "examples" / name)], tmp_path, **pair)
        assert counts(process) == before


def counts(process: BrokerProcess) -> dict[str, tuple[int, int]]:
    """Messages and dead letters of every queue of the primary."""
    with process.admin() as admin:
        return {
            queue.name: (queue.active_message_count or 0, queue.dead_letter_message_count or 0)
            for queue in admin.list_queues_runtime_properties()
        }


@pytest.mark.slow
def test_the_drill_on_the_page_is_what_the_drill_prints(tmp_path: Path) -> None:
    """Line by line, with other numbers; and nothing was lost, there or here.

    Events are told by a thread of their own: their order is theirs, and they may come a line later.
    """
    [shown] = [block.text for block in blocks_of("test_the_drill_on_the_page_is_what_the_drill_prints")]
    printed = run([sys.executable, str(ROOT / "examples" / "outage_drill.py")], tmp_path)
    told = [dict.fromkeys(without_numbers(text).splitlines()) for text in (shown, printed)]
    for is_event in (True, False):
        lines = [[line for line in one if (" s drill " in line) is is_event] for one in told]
        assert lines[0] == lines[1], printed
    assert ", 0 lost" in shown and ", 0 lost" in printed


def without_numbers(text: str) -> str:
    return re.sub(r" +", " ", re.sub(r"\d+(?:\.\d+)?", "N", text))


def test_configuration_files_can_be_read() -> None:
    """The example has keys and queues."""
    [block] = blocks_of("test_configuration_files_can_be_read")
    [namespace] = parse_config(block.text, block.page)
    assert namespace.queues and namespace.keys


def test_the_demo_on_the_pages_is_what_the_demo_prints() -> None:
    """The names of its table are those of the verdict; tests/cli/test_demo.py compares the story with a real run."""
    [shown] = [block.text for block in blocks_of("test_the_demo_on_the_pages_is_what_the_demo_prints")]
    rows = [line.split(None, 2) for line in shown.splitlines()[:-1]]
    assert all(row[2].startswith(MEANINGS[row[0]]) for row in rows)
    assert [row[0] for row in rows] == [field.name for field in fields(DemoVerdict)] == list(MEANINGS)
    assert {row[0]: row[1] for row in rows if row[0] in ("lost", "altered")} == {"lost": "0", "altered": "0"}


# ── nothing is missing ──


def test_the_command_page_is_not_stale() -> None:
    """Run `python tools/write_cli_docs.py` after a change to a command."""
    assert text_of("docs/cli.md") == write_cli_docs.render()


def test_every_line_to_be_typed_on_the_command_page_is_a_command() -> None:
    """A line may also be a comment: blocks are copied, and a shell would run a sentence as a command."""
    typed = [line for block in blocks("docs/cli.md", "sh") for line in block.splitlines()]
    assert len(typed) > 30
    assert [line for line in typed if not re.match(r"(?:PAIRBUS_\w+=\S+ )*pairbus |# ", line)] == []


def test_every_command_and_option_is_on_the_command_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Options are counted in the output of `--help`, so that the generator cannot forget one."""
    page = text_of("docs/cli.md")
    for name, _ in write_cli_docs.commands():
        with pytest.raises(SystemExit):
            main([*name.split()[1:], "--help"])
        shown = capsys.readouterr().out
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        options = set(re.findall(r"^ +(--[a-z-]+)", shown, re.MULTILINE)) - {"--help"}
        assert options and all(f"`{option}" in section for option in options), (name, options)


def test_the_state_diagram_is_not_stale() -> None:
    """Run `python tools/draw_states.py` after a change to the table of transitions."""
    assert draw_states.drawn(text_of("docs/failover.md")) == text_of("docs/failover.md")


def section(page: str, heading: str) -> str:
    return text_of(page).split(f"\n## {heading}\n")[1].split("\n## ")[0]


OPTIONS = inspect.signature(SendAvailabilityPairedNamespaceOptions).parameters


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_documented_with_its_default_and_range(name: str) -> None:
    """The range has the words of the error for a value out of range."""
    rows = {row[0]: row for row in cells(section("docs/failover-options.md", "Options"))}
    assert f"`{name}`" in rows, f"docs/failover-options.md has no row for {name}"
    _, default, accepted, meaning = rows[f"`{name}`"]
    assert default == shown_default(OPTIONS[name].default, name)
    assert accepted == accepted_by(name) or accepted_by(name) is None, name
    assert accepted and meaning


def shown_default(value: Any, name: str) -> str:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    unit = RANGES[name].unit if name in RANGES else ""
    return f"{value:g} s" if unit == "s" and value is not None else f"{value} bytes" if unit == "bytes" else str(value)


def accepted_by(name: str) -> str | None:
    if name in RANGES:
        return str(RANGES[name])
    if name in CHOICES:
        return ", ".join(CHOICES[name])
    return "True, False" if isinstance(OPTIONS[name].default, bool) else None


def test_every_option_on_the_page_exists() -> None:
    """An option that was removed, or misspelt, would send readers astray."""
    rows = [row[0].strip("`") for row in cells(section("docs/failover-options.md", "Options"))[1:]]
    assert set(rows) == set(OPTIONS)


def test_every_event_is_documented_and_its_log_level_is_right() -> None:
    """A reader can look up every event that a client can tell."""
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)}
    documented = {row[0].strip("`") for row in cells(section("docs/failover-operating.md", "Events"))[1:]}
    assert documented == {kind.__name__ for kind in kinds - {events.Event}}
    levels = section("docs/failover-operating.md", "Logs, repr, counters").replace("\n", " ")
    for level, of_level in (("WARNING: ", WARNINGS), ("DEBUG: ", DETAILS)):
        told = re.findall(r"`(\w+)`", levels.split(level)[1].split(").")[0])
        assert sorted(told) == sorted(kind.__name__ for kind in of_level), level


def test_the_refused_application_properties_are_those_on_the_page() -> None:
    """Reserved names are exact: an application may use any other, also one that begins like ours."""
    rows = {row[0]: row for row in cells(section("docs/failover.md", "Migrating from the plain SDK"))}
    assert set(re.findall(r"`(x-[\w-]+)`", rows["application properties"][-1])) == RESERVED


def test_every_logger_of_a_client_is_on_the_page() -> None:
    """A user who raises the level of a logger must know its name; brokers and Spark jobs are other processes."""
    found = set()
    for file in sorted((ROOT / "src/pairbus").rglob("*.py")):
        if "cli" not in file.parts:
            module = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
            names = re.findall(r"getLogger\((.+?)\)", file.read_text(encoding="utf-8"))
            found |= {module if name == "__name__" else name.strip('"') for name in names}
    levels = section("docs/failover-operating.md", "Logs, repr, counters").split("WARNING")[0]
    elsewhere = ("pairbus.broker", "pairbus.dashboard", "pairbus.proxy", "pairbus.spark")
    assert set(re.findall(r"`(pairbus[\w.]*)`", levels)) == {one for one in found if not one.startswith(elsewhere)}


def exceptions() -> set[str]:
    """Every exception class of ours, found by importing everything."""
    for module in pkgutil.walk_packages(pairbus.__path__, "pairbus."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, unseen = {ProtocolError.__name__}, [PairbusError]
    while unseen:
        kind = unseen.pop()
        if kind.__module__.startswith("pairbus."):
            found.add(kind.__name__)
        unseen += kind.__subclasses__()
    return found


def test_every_exception_is_documented() -> None:
    """Meaning, is the message safe, what to do: four cells, none of the first three empty."""
    rows = {row[0]: row for row in table_rows("docs/errors.md")}
    found = exceptions()
    assert len(found) > 15
    for name in found:
        row = rows.get(f"`{name}`")
        assert row is not None, f"docs/errors.md has no row for {name}"
        assert len(row) == 4 and all(row[:3]), row


def conditions() -> set[str]:
    """Every AMQP condition that the code can answer with: the constants, and literals given to a refusal."""
    found: set[str] = set()
    for path in ("amqp/errors.py", "broker/refusal.py"):
        found |= set(re.findall(r'^[A-Z_]+ = "((?:amqp|com\.microsoft):[a-z:-]+)"', source(path), re.MULTILINE))
    for file in sorted((ROOT / "src/pairbus/broker").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                value = node.args[0].value
                if isinstance(value, str) and re.fullmatch(r"amqp:[a-z:-]+", value):
                    found.add(value)
    return found


def source(path: str) -> str:
    return (ROOT / "src" / "pairbus" / path).read_text(encoding="utf-8")


def test_every_condition_is_documented() -> None:
    """A reader can look up every condition that a client can be told."""
    documented = {row[0].strip("`") for row in table_rows("docs/errors.md")}
    found = conditions()
    assert len(found) > 15
    assert found <= documented, found - documented


def table_rows(page: str) -> Iterator[list[str]]:
    yield from cells(text_of(page))


def cells(text: str) -> list[list[str]]:
    """Split the rows of all tables in a text into cells; lines that only draw a rule are left out."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


# ── links and names ──


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """A link leads to a file of the repository, and to its heading if one is named; web links are not followed."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https://)([^)]+)\)", prose):
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), f"{page.name} links to {target}"


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_every_test_of_the_support_matrix_exists() -> None:
    """docs/broker.md says yes only where a test shows it, by name; a row without a test says no."""
    rows = [row for row in table_rows("docs/broker.md") if len(row) == 4 and row[3] != "shown by" and row[1]]
    assert len(rows) > 60
    for _, feature, support, tests in rows:
        named, files = re.findall(NAMED_TEST, tests), re.findall(r"`(tests/sdk/js/\w+\.mjs)`", tests)
        assert support == "no" or named, f"{feature}: names no test"
        assert support != "no" or not tests, f"{feature}: is not supported, and has tests"
        for file, function in named:
            assert f"def {function}(" in text_of(file), f"{feature}: {file}::{function}"
        assert all((ROOT / file).is_file() for file in files), feature


@pytest.mark.parametrize("page", ["docs/internals.md", "SECURITY.md"])
def test_every_test_that_holds_an_invariant_exists(page: str) -> None:
    """An invariant, or a defence, without a test is a wish."""
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text_of(page))
    assert len(named) > 15
    for file, function in named:
        assert (ROOT / file).is_file(), file
        if function:
            assert f"def {function}(" in text_of(file), f"{file}::{function}"


NAMED_TEST = r"`(tests/[\w/]+\.py)::(\w+)`"


def test_every_rule_has_a_test_and_every_test_exists() -> None:
    """A rule that nothing shows is an opinion. What its tests run on is read from their own text."""
    rows = [row for row in table_rows("docs/rules.md") if re.fullmatch(r"\d+\.\d+", row[0])]
    assert len(rows) > 80
    numbers = [tuple(map(int, row[0].split("."))) for row in rows]
    assert numbers == sorted(set(numbers)), "rules are numbered in order"
    for number, rule, on, tests in rows:
        assert rule and re.findall(NAMED_TEST, tests), f"rule {number} names no test"
        grounds = {ground(file, function) for file, function in re.findall(NAMED_TEST, tests)}
        assert on == ", ".join(kind for kind in GROUNDS if kind in grounds), f"rule {number} is shown on {grounds}"


def is_deep(file: str, function: str) -> bool:
    """True when `make test` leaves the whole test out; a row of its parameters alone may be deep."""
    text = text_of(file)
    marks = re.search(r"^pytestmark = (?:.|\n)*?^(?=\S)", text, re.M)
    above = re.search(rf"((?:^[@ )\]].*\n)*)^(?:async )?def {function}\(", text, re.M)
    assert above is not None, f"{file}::{function} does not exist"
    return "mark.deep" in (marks[0] if marks else "") or "\n@pytest.mark.deep\n" in f"\n{above[1]}"


def test_make_test_shows_every_rule() -> None:
    """A rule that `make deep` alone shows is broken for weeks before anybody notices."""
    assert is_deep("tests/test_stories.py", "test_faults_come_and_go")
    assert is_deep("tests/test_runbook.py", "test_every_command_of_the_runbook_works")
    for row in table_rows("docs/rules.md"):
        named = re.findall(NAMED_TEST, row[-1])
        assert not named or not all(is_deep(file, function) for file, function in named), row[0]


def test_every_rule_is_shown_on_two_brokers_or_simulated() -> None:
    """The exceptions stand in the introduction, by number."""
    page = text_of("docs/rules.md")
    rows = [row for row in table_rows("docs/rules.md") if re.fullmatch(r"\d+\.\d+", row[0])]
    told = re.search(r"except these: ([\d., \n]+)\. ", page)
    assert told is not None
    assert re.findall(r"\d+\.\d+", told[1]) == [row[0] for row in rows if not {"pair", "sim"} & set(row[2].split(", "))]


def test_every_difference_from_the_plain_sdk_has_a_test_that_exists() -> None:
    """A difference that nothing shows is a rumour."""
    rows = [row for row in table_rows("docs/differences.md") if row[0] != "the plain SDK"]
    assert len(rows) > 20
    for plain, paired, tests in rows:
        named = re.findall(NAMED_TEST, tests)
        assert plain and paired and named, f"{plain}: names no test"
        for file, function in named:
            assert f"def {function}(" in text_of(file), f"{file}::{function}"


GROUNDS = ("pair", "sim", "script", "part")


def ground(file: str, function: str) -> str:
    """Tell what a test runs on, by its fixtures, or by the brokers and stages that it starts itself."""
    found = re.search(rf"^(?:async )?def {function}\((.*?)\) -> None:\n(.*?)(?=^\S|\Z)", text_of(file), re.M | re.S)
    assert found is not None, f"{file}::{function} does not exist"
    takes, body = found.groups()
    if file.startswith("tests/sim/"):
        return "sim"
    if not file.startswith("tests/client/"):
        return "script" if file == "tests/testing/test_scripted_sdk.py" else "part"
    if "world: World" in takes or body.count("BrokerProcess(") > 1:
        return "pair"
    return "script" if "stage: Stage" in takes or "with_stages(" in body else "part"


def test_every_claim_about_azure_has_a_date_or_never() -> None:
    """Each claim also says what it is based on."""
    rows = [row for row in table_rows("docs/verified.md") if row[0] != "claim"]
    assert len(rows) > 25
    for claim, based_on, if_wrong, verified in rows:
        assert claim and if_wrong and re.fullmatch(r"[DSBO](?:, [DSBO])*", based_on), claim
        assert re.fullmatch(r"never|20\d\d-\d\d-\d\d", verified), claim


SOURCE_FILE = r"`((?:\w+/)*\w+\.py)`"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/internals.md"])
def test_every_file_that_the_architecture_names_exists(page: str) -> None:
    """The walks and the table "to change X, open Y" are the map of the source."""
    named = re.findall(SOURCE_FILE, text_of(page))
    assert len(named) > 50
    for file in named:
        assert (ROOT / file).is_file() or (ROOT / "src" / "pairbus" / file).is_file(), file


def test_the_walk_of_a_send_passes_every_file_once() -> None:
    """A reader who opens them in this order has read the client and the syphon, none of it twice."""
    walk = text_of("ARCHITECTURE.md").split("# The paired client: a send, failed over, stored, moved home\n")[1]
    named = re.findall(SOURCE_FILE, walk.split("\n# ")[0])
    assert len(named) == len(set(named)), sorted({file for file in named if named.count(file) > 1})
    folders = [ROOT / "src" / "pairbus" / name for name in ("client", "syphon")]
    files = [path for folder in folders for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert {f"{path.parent.name}/{path.name}" for path in files} <= set(named)


def test_the_architecture_can_be_read_in_a_sitting() -> None:
    """Tables that are looked up are in docs/internals.md. The glossary is looked up too, and may grow."""
    text, glossary = text_of("ARCHITECTURE.md").split("\n# Glossary\n")
    assert len(text.splitlines()) <= 172
    assert "\n# " not in glossary


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{name}.md" for name in ("quickstart", "failover", "broker", "spool", "testing"))]
)
def test_every_command_that_is_shown_has_the_options_it_is_shown_with(page: str) -> None:
    """A command that is copied in the night of an outage must work."""
    commands = {tuple(name.split()[1:]): name for name, _ in write_cli_docs.commands()}
    shown = [line for block in blocks(page, "sh") for line in re.findall(r"(?:^|[ /])pairbus ([a-z].*)$", block, re.M)]
    assert shown
    for line in shown:
        words = line.split("#")[0].split()
        [name] = [name for key, name in commands.items() if tuple(words[: len(key)]) == key]
        section = text_of("docs/cli.md").split(f"## {name}\n")[1].split("\n## ")[0]
        for option in [word for word in words if word.startswith("--")]:
            assert f"`{option}" in section, f"{page}: {name} {option}"


def test_the_import_rule_on_the_page_is_the_one_that_is_kept() -> None:
    """`MAY_IMPORT` of the tidy test is the rule; the page shows it to those who read before they write."""
    shown = {row[0].strip("`"): row[2] for row in cells(section("docs/internals.md", "Who may import whom"))[1:]}
    assert set(shown) == set(MAY_IMPORT)
    everything = set(MAY_IMPORT) - {"testing", "cli", "__main__", "__init__"}
    for part, may in MAY_IMPORT.items():
        named = everything if shown[part] == "everything but `testing`" else set(re.findall(r"`(\w+)`", shown[part]))
        assert named == may, f"docs/internals.md: {part} may import {sorted(may)}"


def test_every_make_target_that_is_named_exists() -> None:
    """`make` is the one way in."""
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    for page in PAGES:
        for line in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert line in targets, f"{page.name}: make {line}"


def test_the_bytes_of_a_backlog_message_are_those_on_the_page() -> None:
    """Besides its path: usually, with the mark of an unknown outcome, with a number in order, with both."""
    marks, orders = (None, COUNTER_MAX), ((None, None), ("0" * 32, COUNTER_MAX))
    usual, marked, ordered, both = (overhead(Envelope("", mark, *order)) for order in orders for mark in marks)
    said = (
        f"at most {usual} more. This becomes {marked} ({marked - usual} more) when the backlog message says that the"
        f" primary may have the message too, {ordered} ({ordered - usual} more) with `ordered`, and {both} with both."
    )
    assert said in " ".join((ROOT / "docs/failover-guarantees.md").read_text().split())
    long = 256
    assert overhead(Envelope("x" * long)) - long - usual == 3
    assert f"at most {both} bytes and the path, usually {usual}" in (ROOT / "docs/prices.md").read_text()
