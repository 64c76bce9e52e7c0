"""All commands: their help, what they import, how they read durations, and completion."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from tools.write_cli_docs import commands, parameters

from pairbus.cli import MODULES, application
from pairbus.settings.durations import seconds_of
from tests.brokers import BrokerProcess
from tests.cli.command import Command

HEAVY = ("pyspark", "pyarrow", "pandas", "aiohttp", "cryptography", "azure", "uvloop", "rich", "pairbus.transport")
NAMES = sorted(name.removeprefix("pairbus ") for name, _ in commands())


def test_commands_import_nothing_heavy_before_they_run() -> None:
    """A third of a second for each of these would be paid by every call, also by --help and completion."""
    code = f"import sys, pairbus.cli; pairbus.cli.app; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NOT_NEEDED = (
    "pyspark",
    "cryptography",
    "pydantic",
    "rich",
    "pairbus.broker",
    "pairbus.transport",
    "pairbus.cli.pipeline.syphon",
)


def test_queue_list_imports_only_what_it_needs(broker: BrokerProcess) -> None:
    """`queue list` imports neither the broker, nor Spark, nor the other commands."""
    code = (
        "import sys, pairbus.cli\n"
        "try: pairbus.cli.main(['queue', 'list', '--json'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {NOT_NEEDED} if name in sys.modules], file=sys.stderr)"
    )
    environment = {**os.environ, "PAIRBUS_CONNECTION_STRING": broker.connection_string("contoso")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.startswith("[")
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command is tried before its page is read."""
    outcome = Command(capsys)(*name.split(), "--help")
    assert outcome.code == 0
    assert "Example" in outcome.out


def test_making_the_command_again_adds_no_command_twice() -> None:
    """Tests and the page of the commands make it many times in one process."""
    known = [name for name, _ in commands(application())]
    assert [name for name, _ in commands(application())] == known
    assert len(set(known)) == len(known)


def test_summaries_in_help_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Three dots in the place of the verb say nothing."""
    for arguments in (("--help",), ("message", "--help"), ("queue", "--help")):
        lines = Command(capsys)(*arguments).out.splitlines()
        assert not [line for line in lines if line.endswith("...") and "Usage:" not in line]


def test_completion_script_is_printed_and_completes() -> None:
    """The shell asks the program itself."""
    environment = {**os.environ, "_PAIRBUS_COMPLETE": "complete_bash", "COMP_WORDS": "pairbus mess", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pairbus"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.split() == ["message"]


def test_every_module_of_a_command_is_listed() -> None:
    """A command of another name than its module is found by importing all of them."""
    assert {"queue", "message", "broker"} <= set(MODULES)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("0.5", 0.5),
        ("30s", 30.0),
        ("250ms", 0.25),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("2d", 172_800.0),
        ("PT5M", 300.0),
        ("P1DT2H", 93_600.0),
        ("5 m", None),
        ("-5", None),
        ("m5", None),
        ("", None),
        ("P", None),
        ("nan", None),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float | None) -> None:
    """Plain seconds and ISO-8601 stay accepted."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("queue", "create", "q", "--max-delivery-count", "0"),
            "pairbus queue create: Invalid value for '--max-delivery-count': 0 is not in the range x>=1;"
            " see `pairbus queue create --help`",
        ),
        (
            ("queue", "create", "q", "--lock-duration", "10m"),
            "pairbus queue create: Invalid value for '--lock-duration': 10m is too long: the service takes at most 5m;"
            " see `pairbus queue create --help`",
        ),
        (
            ("demo", "--messages", "many"),
            "pairbus demo: Invalid value for '--messages': 'many' is not a valid whole number;"
            " see `pairbus demo --help`",
        ),
        (
            ("message", "send", "q", "hello", "--ttl", "50d"),
            "pairbus message send: Invalid value for '--ttl': 50d; it must be at least 1ms and at most 49d;"
            " see `pairbus message send --help`",
        ),
        (
            ("redrive", "orders", "--bogus"),
            "pairbus redrive: No such option: --bogus (Possible options: --verbose); see `pairbus redrive --help`",
        ),
        (("message", "peek"), "pairbus message peek: Missing argument 'ENTITY'; see `pairbus message peek --help`"),
        (("nonsense",), "pairbus: No such command 'nonsense'; see `pairbus --help`"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the command, what is wrong, and where the options are listed."""
    monkeypatch.setenv(
        "PAIRBUS_CONNECTION_STRING", "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=aw=="
    )
    done = Command(capsys)(*arguments)
    assert (done.code, done.out, done.err) == (2, "", f"{line}\n")


@pytest.mark.parametrize("name", NAMES)
def test_values_have_names_in_capitals(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One form in every help: NAME is to be replaced, a word in small letters is to be typed."""
    done = Command(capsys)(*name.split(), "--help")
    usage = done.out.split("\n\n")[0]
    assert not re.search(r"[{\[][a-z]", usage), usage
    assert not re.search(r"^ +-.*<\w+", done.out, re.MULTILINE), done.out


VALUES = {
    **dict.fromkeys(["FILE", "DIR", "LOCATION"], "a file; a folder; a folder or an address in an object store"),
    **dict.fromkeys(["CS", "HOST", "PORT", "URL", "PID"], "connection string, host, port and address of a process"),
    **dict.fromkeys(["ENTITY", "TOPIC", "SUBSCRIPTION", "TO", "NAME", "PATTERN"], "entities and names"),
    **dict.fromkeys(["DURATION", "N", "NUMBER", "SIZE", "RATE"], "durations and numbers"),
    **dict.fromkeys(["SQL", "TEXT", "BODY", "VALUE", "KEY", "ID", "TYPE"], "rules and parts of messages"),
    **dict.fromkeys(["KIND", "STATUS", "LEDGER", "SHEET", "VIEW"], "words of one command"),
    **dict.fromkeys(["MODULE", "CALLABLE"], "a function of the user"),
}
"Every name of a value: one name for one kind of value, in the help of all commands."


def test_values_of_one_kind_have_one_name() -> None:
    """`--to DIR` beside `--to NEWFOLDER` makes a reader look for a difference that is not there."""
    used = {
        word
        for _, command in commands()
        for _, info, _ in parameters(command.callback)  # type: ignore[arg-type]  # each command has one
        for word in re.findall(r"[A-Z]+", info.metavar or "")
    }
    assert used == set(VALUES)
