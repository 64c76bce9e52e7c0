"""Every code block of every page is held true by a test, or stands on a short list with the reason why it is not.

`HELD` names, for the blocks of a page and a language, the test that runs them or prints them. Blocks for a shell are
typed at a prompt: on every page their lines are parsed by the program that they call; those with a row here are run.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import click
import pytest
import typer

from pairbus.cli import app, main
from pairbus.pairing.events import Event, FailedOver, Recovered, Suspected
from pairbus.testing import ServiceBusNamespace
from tests.test_docs import PAGES, ROOT, text_of

BLOCK = re.compile(r"^```([\w-]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HERE = "tests/test_blocks.py"

# (page, language) → the test that runs all of these blocks, or whose output they are.
HELD: dict[tuple[str, str], str] = {
    ("README.md", "python"): "tests/test_readme.py::test_readme_fails_over_a_queue_of_the_reader",
    ("README.md", "text"): "tests/cli/test_demo.py::test_every_message_comes_home",
    ("CONTRIBUTING.md", "diff"): f"{HERE}::test_lines_that_the_first_change_replaces_exist",
    ("docs/broker.md", "python"): "tests/test_docs.py::test_the_embedded_broker_of_the_page_runs",
    ("docs/broker.md", "js"): "tests/test_docs.py::test_javascript_code_runs_against_the_broker",
    ("docs/broker.md", "json"): "tests/test_docs.py::test_configuration_files_can_be_read",
    ("docs/broker.md", "text"): f"{HERE}::test_lines_that_a_broker_prints",
    ("docs/failover.md", "mermaid"): "tests/test_docs.py::test_the_state_diagram_is_not_stale",
    ("docs/failover.md", "python"): "tests/test_docs.py::test_python_code_runs_against_the_broker",
    ("docs/failover.md", "diff"): f"{HERE}::test_migration_changes_two_lines_that_exist",
    ("docs/failover.md", "text"): f"{HERE}::test_log_lines_are_those_of_the_events",
    ("docs/filters.md", "sql"): "tests/broker/filters/test_page.py::test_examples_of_the_page_compile",
    ("docs/filters.md", "sql-action"): "tests/broker/filters/test_page.py::test_examples_of_the_page_compile",
    ("docs/integrations.md", "python"): "tests/integrations/test_programs.py::test_page_shows_the_programs_as_they_are",
    ("docs/integrations.md", "yaml"): "tests/integrations/test_programs.py::test_page_shows_the_programs_as_they_are",
    ("docs/ledger.md", "json"): "tests/ledger/test_page.py::test_the_examples_are_lines_that_the_code_writes_and_reads",
    ("docs/messages.md", "python"): "tests/test_docs.py::test_python_code_runs_against_the_broker",
    ("docs/outages.md", "python"): "tests/faults/test_page.py::test_python_of_the_page_runs",
    ("docs/quickstart.md", "python"): "tests/test_docs.py::test_python_code_runs_against_the_broker",
    ("docs/quickstart.md", "text"): "tests/test_docs.py::test_the_drill_on_the_page_is_what_the_drill_prints",
    ("docs/testing.md", "python"): "tests/kit/test_examples.py::test_every_example_of_the_page_passes",
    # Shell blocks that are run, and not only parsed.
    ("README.md", "sh"): "tests/test_readme.py::test_readme_fails_over_a_queue_of_the_reader",
    ("docs/broker.md", "sh"): f"{HERE}::test_entities_are_created_as_the_page_says",
    ("docs/outages.md", "sh"): "tests/faults/test_page.py::test_example_switches_its_fault_on",
}

# (page, language) → why no test runs these blocks. Python among them is compiled.
EXEMPT: dict[tuple[str, str], str] = {
    ("ARCHITECTURE.md", "text"): "a drawing",
    ("docs/spool.md", "text"): "a drawing",
    ("docs/broker.md", ""): "a list of files",
    ("docs/ledger.md", "python"): "the second block needs a Spark session",
    ("docs/spark.md", "python"): "needs a Spark session, most of them a cluster or Azure",
    ("docs/spark.md", "sql"): "needs a Spark session",
    ("docs/spark.md", ""): "needs a cluster, or builds an image",
    ("docs/spark.md", "properties"): "needs Kubernetes",
    ("docs/spark-syphon.md", ""): "needs a Spark session",
    ("docs/telemetry.md", "yaml"): "the configuration of a Prometheus server; read as YAML",
}


def found_blocks() -> Iterator[tuple[str, str, str]]:
    """Page, language and text of every fenced block."""
    for path in PAGES:
        page = path.relative_to(ROOT).as_posix()
        for language, text in BLOCK.findall(text_of(page)):
            yield page, language, text


BLOCKS: dict[tuple[str, str], list[str]] = defaultdict(list)
for _page, _language, _text in found_blocks():
    BLOCKS[_page, _language].append(_text)
SHELL = [key for key in BLOCKS if key[1] == "sh"]


def test_every_block_is_held_by_a_test_or_exempt() -> None:
    """A new kind of block on a page needs a row; so does a row need its blocks and its test."""
    assert set(HELD) & set(EXEMPT) == set()
    assert {key for key in BLOCKS if key[1] != "sh"} - set(HELD) - set(EXEMPT) == set()
    assert {*HELD, *EXEMPT} - set(BLOCKS) == set()
    for test in HELD.values():
        file, _, function = test.partition("::")
        assert re.search(rf"^(?:async )?def {function}\(", text_of(file), re.MULTILINE), test


@pytest.mark.parametrize("key", [key for key in EXEMPT if key[1] == "python"], ids=lambda key: key[0])
def test_python_that_is_not_run_compiles(key: tuple[str, str]) -> None:
    """Without Spark this is as much as can be said."""
    for text in BLOCKS[key]:
        compile(text, key[0], "exec")


def test_yaml_that_is_not_used_can_be_read() -> None:
    yaml = pytest.importorskip("yaml", reason="yaml is not installed: pip install 'pairbus[integrations]'")
    [text] = BLOCKS["docs/telemetry.md", "yaml"]
    assert [set(job) & {"job_name", "static_configs"} for job in yaml.safe_load(text)["scrape_configs"]] == [
        {"job_name", "static_configs"}
    ] * 2


# ── lines for a shell ──

COMMAND = typer.main.get_command(app)
# Programs that are not ours, and builtins of the shell.
OTHERS = {".", "curl", "export", "git", "mkdir", "pip", "python", "python3", "spark-submit", "tar", "venv-pack"}


def typed(text: str) -> Iterator[list[str]]:
    """The words of each command of a block, without comments, variables and a redirection of the output."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r" && ", line):
            words = shlex.split(part, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            cut = min((words.index(sign) for sign in ("<", ">", ">>", "|") if sign in words), default=len(words))
            if words:
                yield words[:cut]


@pytest.mark.parametrize("key", SHELL, ids=lambda key: key[0])
def test_every_line_for_a_shell_can_be_typed(key: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of ours take the arguments; make has the target; tests and modules are there."""
    for name in ("PRIMARY", "SECONDARY", "CONNECTION_STRING"):
        monkeypatch.setenv(f"PAIRBUS_{name}", "Endpoint=sb://127.0.0.1;SharedAccessKeyName=a;SharedAccessKey=b")
    for words in (words for text in BLOCKS[key] for words in typed(text)):
        program = words[0].removeprefix(".venv/bin/").removeprefix("build/bin/")
        if program == "pairbus":
            parsed(COMMAND, words[1:])
        elif program == "make":
            assert re.search(rf"^{words[1]}:", text_of("Makefile"), re.MULTILINE), words
        elif program == "pytest":
            assert all((ROOT / word).exists() for word in words[1:] if word.startswith("tests")), words
        elif program == "python" and "-m" in words[:2]:
            assert words[2] == "venv" or importlib.util.find_spec(words[2]), words
        else:
            assert program in OTHERS, f"{key[0]}: {words}"


def parsed(command: Any, words: list[str]) -> None:
    """Parse the arguments by the command itself, down to the last option, and call nothing."""
    with command.make_context(command.name or "pairbus", list(words), resilient_parsing=False) as context:
        if isinstance(command, click.Group) or hasattr(command, "commands"):
            rest = [*context._protected_args, *context.args]
            parsed(command.commands[rest[0]], rest[1:])


def test_entities_are_created_as_the_page_says(
    servicebus_namespace: ServiceBusNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of docs/broker.md in their order, against an empty namespace."""
    monkeypatch.setenv("PAIRBUS_CONNECTION_STRING", servicebus_namespace.connection_string)
    [text] = [text for text in BLOCKS["docs/broker.md", "sh"] if "rule create" in text]
    for words in typed(text):
        if words[0] == "pairbus":
            with pytest.raises(SystemExit) as ended:
                main(words[1:])
            assert not ended.value.code, words
    assert len(capsys.readouterr().out.splitlines()) == 5


# ── texts that are the output of something ──


def test_lines_that_a_broker_prints(servicebus_namespace: ServiceBusNamespace) -> None:
    """Name and connection string of each namespace, then `ready`: the line that BrokerProcess waits for."""
    *lines, last = BLOCKS["docs/broker.md", "text"][0].splitlines()
    assert last == "ready"
    shape = re.sub(r":\d+;", ":PORT;", servicebus_namespace.connection_string)
    assert [re.sub(r":\d+;", ":PORT;", line) for line in lines] == [
        f"{name} {shape}" for name in ("contoso", "fabrikam")
    ]


def test_log_lines_are_those_of_the_events() -> None:
    """Numbers and reasons of the page, written by the events themselves."""
    [text] = [text for text in BLOCKS["docs/failover.md", "text"] if "HEALTHY -> SUSPECT" in text]
    reason = re.findall(r"SUSPECT: (.*); fails", text)[0]
    events: list[Event] = [
        Suspected("orders", reason, 60.0),
        FailedOver("orders", 60.0, 4, reason),
        Recovered("orders", 312.4, 40, "a ping"),
    ]
    assert text.splitlines() == [str(event) for event in events]


def test_migration_changes_two_lines_that_exist() -> None:
    """Both clients are imported from where the page says, and have the methods that it calls."""
    [text] = BLOCKS["docs/failover.md", "diff"]
    for sign, names in (("-", {"primary": ""}), ("+", {"primary": "", "secondary": ""})):
        imported, made = [line[1:] for line in text.splitlines() if line.startswith(sign)]
        scope: dict[str, Any] = dict(names)
        exec(imported, scope)
        name, method = re.findall(r"= (\w+)\.(\w+)\(", made)[0]
        assert callable(getattr(scope[name], method))


def test_lines_that_the_first_change_replaces_exist() -> None:
    """CONTRIBUTING.md walks through a change of a real error text and its test."""
    for text in BLOCKS["CONTRIBUTING.md", "diff"]:
        header, *lines = text.splitlines()
        source = text_of(header.removeprefix("--- a/"))
        old = [line[1:] for line in lines if line.startswith("-")]
        assert old and all(source.count(f"{line}\n") == 1 for line in old), header
