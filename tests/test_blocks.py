"""Every code block of every page is run by a test, is its output, or has a row that says why it is neither.

The rows are in `tests/pages.py`. Lines for a shell are also parsed here by the program that they call, on every page:
that finds a wrong option in seconds.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click
import pytest
import typer
from azure.servicebus import ServiceBusMessage

from pairbus.cli import app
from pairbus.cli.pair.status_facts import CountChange, PeekedMessages, QueueFacts, Reached, Status, summary
from pairbus.cli.pair.status_syphons import Syphoning
from pairbus.pairing.events import Event, FailedOver, Recovered, Suspected
from pairbus.testing import ServiceBusPair
from tests.pages import (
    GENERATED,
    HELD,
    LANGUAGES,
    LEFT_OUT,
    NOT_RUN,
    PAGES,
    ROOT,
    Block,
    all_blocks,
    blocks,
    blocks_of,
    text_of,
)


def test_every_block_has_one_row() -> None:
    """A block without a row fails here; so does a row without a block, or a beginning that two blocks have."""
    assert set(HELD) & set(NOT_RUN) == set()
    assert [str(block) for block in all_blocks() if len(block.rows) != 1] == []
    used = Counter(key for block in all_blocks() for key in block.rows)
    assert {*HELD, *NOT_RUN} - set(used) == set()
    assert [key for key, number in used.items() if key[1] not in LANGUAGES and number > 1] == []


def test_every_fence_belongs_to_a_block() -> None:
    """Indented fences count too. A block that the expression does not see would need no row."""
    for path in PAGES:
        page = path.relative_to(ROOT).as_posix()
        fences = re.findall(r"^\s*```", text_of(page), re.MULTILINE)
        assert len(fences) == 2 * sum(block.page == page for block in all_blocks()), page


@pytest.mark.parametrize("test", sorted(set(HELD.values())))
def test_every_row_names_a_test_that_takes_its_blocks(test: str) -> None:
    """The test asks for its blocks by its own name, so that it gets those that are added later."""
    file, _, function = test.partition("::")
    assert re.search(rf"^(?:async )?def {function}\(", text_of(file), re.MULTILINE)
    assert function in GENERATED or re.search(rf'(?:blocks_of|taking)\("{function}"\)', text_of(file))


def test_every_line_that_is_left_out_exists() -> None:
    """A line is left out of a block that is run."""
    for page, line in LEFT_OUT:
        found = [
            block for block in all_blocks() if block.page == page and re.search(f"^{re.escape(line)}", block.text, re.M)
        ]
        assert any(set(block.rows) <= set(HELD) for block in found), line


# ── lines for a shell ──

COMMAND = typer.main.get_command(app)
# Programs that are not ours, and builtins of the shell.
OTHERS = {".", "cp", "curl", "export", "git", "mkdir", "pip", "python", "python3", "spark-submit", "tar", "venv-pack"}


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


@pytest.mark.parametrize("page", sorted({block.page for block in all_blocks() if block.language == "sh"}))
def test_every_line_for_a_shell_can_be_typed(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of ours take the arguments; make has the target; tests and modules are there."""
    for name in ("PRIMARY", "SECONDARY", "CONNECTION_STRING"):
        monkeypatch.setenv(f"PAIRBUS_{name}", "Endpoint=sb://127.0.0.1;SharedAccessKeyName=a;SharedAccessKey=b")
    for words in (words for text in blocks(page, "sh") for words in typed(text)):
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
            assert program in OTHERS, f"{page}: {words}"


def parsed(command: Any, words: list[str]) -> None:
    """Parse the arguments by the command itself, down to the last option, and call nothing."""
    with command.make_context(command.name or "pairbus", list(words), resilient_parsing=False) as context:
        if isinstance(command, click.Group) or hasattr(command, "commands"):
            rest = [*context._protected_args, *context.args]
            parsed(command.commands[rest[0]], rest[1:])


# ── texts that are the output of something ──


def test_log_lines_are_those_of_the_events() -> None:
    """Numbers and reasons of the page, written by the events themselves."""
    [block] = blocks_of("test_log_lines_are_those_of_the_events")
    reason = re.findall(r"SUSPECT: (.*); fails", block.text)[0]
    events: list[Event] = [
        Suspected("orders", reason, 60.0),
        FailedOver("orders", 60.0, 4, reason),
        Recovered("orders", 312.4, 40, "a ping"),
    ]
    assert block.text.splitlines() == [str(event) for event in events]


def test_states_are_shown_as_on_the_page(servicebus_pair: ServiceBusPair) -> None:
    """A client whose primary is away, after 40 sends, the first of which one backlog queue refused."""
    [block] = blocks_of("test_states_are_shown_as_on_the_page")
    servicebus_pair.primary.create_queue("orders")
    with servicebus_pair.client(failover_interval=0) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        servicebus_pair.primary.faults.add("refuse")
        servicebus_pair.secondary.faults.add("disable", count=1)
        for number in range(40):
            sender.send_messages(ServiceBusMessage(f"{number}"))
        shown = f"{client!r}\n{sender!r}\n"
    for name, namespace in (("contoso", servicebus_pair.primary), ("fabrikam", servicebus_pair.secondary)):
        host = re.findall("sb://([^;/]+)", namespace.connection_string)[0]
        shown = shown.replace(host, f"{name}.servicebus.windows.net")
    assert re.sub(r"for [\d.]+s", "for 12.4s", shown) == block.text


def test_status_lines_are_those_of_the_command() -> None:
    """Numbers of the page, written by the function that writes the summary of `pairbus status`."""
    [block] = blocks_of("test_status_lines_are_those_of_the_command")
    numbers = {"queues": 10, "moved": 18403, "per_second": 301.2, "over_s": 61.0, "blocked": 0, "dead_lettered": 0}
    answers = {**numbers, "errors": 0, "primary_away": False}
    now_s = 1_800_000_000.0
    peeked = PeekedMessages(100, False, int(1000 * (now_s - 724)), Counter(orders=78, payments=22))
    queues = [QueueFacts(f"contoso/x-servicebus-transfer/{index}", 512, 0, peeked) for index in range(10)]
    status = Status(
        now_s,
        Reached("contoso", 0.01),
        Reached("fabrikam", 0.01),
        "contoso",
        10,
        tuple(queues),
        syphons=(Syphoning(4711, "syphon", "pairbus", answers),),
    )
    assert block.text.splitlines() == summary(status, CountChange(5.002, -1490))


@pytest.mark.parametrize("block", blocks_of("test_migration_changes_two_lines_that_exist"), ids=str)
def test_migration_changes_two_lines_that_exist(block: Block) -> None:
    """The two clients are imported from where the page says, and have the methods that it calls."""
    for sign, names in (("-", {"primary": ""}), ("+", {"primary": "", "secondary": ""})):
        imported, made = [line[1:] for line in block.text.splitlines() if line.startswith(sign)]
        scope: dict[str, Any] = dict(names)
        exec(imported, scope)
        name, method = re.findall(r"= (\w+)\.(\w+)\(", made)[0]
        assert callable(getattr(scope[name], method))
