"""Standard input and output of `pairbus message`: readers that leave or are slow, and writers that pause."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.cli.messages.output import Output
from pairbus.transport import Receiver, TransportError
from tests.brokers import BrokerProcess
from tests.cli.test_message_cli import Messages, messages
from tests.conftest import MakeQueue

__all__ = ["messages"]

PATIENCE_S = 30.0


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `pairbus message` as a process with pipes."""
    command = [sys.executable, "-m", "pairbus", "message", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, **environment}, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def fill(broker: BrokerProcess, queue: str, bodies: list[str]) -> None:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string("contoso")) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages([ServiceBusMessage(body) for body in bodies])


def active(broker: BrokerProcess, queue: str) -> int:
    with broker.admin("contoso") as admin:
        return admin.get_queue_runtime_properties(queue).active_message_count or 0


# ── output ──


@pytest.mark.parametrize("delete", [True, False])
def test_reader_that_leaves_is_told_where_the_messages_are(
    messages: Messages, queue_name: str, broker: BrokerProcess, delete: bool
) -> None:
    """Messages that were deleted as they came cannot be given back, and the text must not say so."""
    fill(broker, queue_name, ["x" * 2000] * 90)
    mode = ["--receive-and-delete"] if delete else []
    with started("receive", queue_name, "--count", "90", *mode) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 1
        said = process.stderr.read().decode()
    assert len(said.splitlines()) == 1, said
    assert "standard output cannot be written (" in said
    assert ("the service has deleted" in said) is delete
    assert ("given back" in said) is not delete
    assert delete or active(broker, queue_name) > 0


@pytest.mark.parametrize("output", ["jsonl", "json", "table"])
def test_output_is_written_in_every_encoding(messages: Messages, queue_name: str, output: str) -> None:
    """The message is deleted before it is written: a character that the terminal lacks must not lose it."""
    messages.done("send", queue_name, "snow ☃ 𝄞 é")
    receive = ("receive", queue_name, "--receive-and-delete", "-o", output)
    with started(*receive, PYTHONIOENCODING="latin-1") as process:
        out, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, error) == (0, b"")
    if output == "table":
        assert "snow \\u2603 \\U0001d11e é" in out.decode("latin-1")
    else:
        found: Any = json.loads(out.decode("utf-8"))
        assert (found[0] if output == "json" else found)["body"] == "snow ☃ 𝄞 é"


def test_export_is_utf8_in_every_encoding(messages: Messages, queue_name: str) -> None:
    """`import` reads UTF-8."""
    messages.done("send", queue_name, "snow ☃ 𝄞 é")
    with started("export", queue_name, PYTHONIOENCODING="latin-1") as process:
        out, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, error) == (0, b"exported 1 message\n")
    assert json.loads(out.decode("utf-8"))["body"] == "snow ☃ 𝄞 é"


def test_slow_reader_does_not_cost_the_locks(
    messages: Messages, make_queue: MakeQueue, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks are renewed while the output waits for its reader, also those of messages that wait behind it."""
    queue = make_queue(lock_duration=timedelta(seconds=5))
    fill(broker, queue, ["a", "b"])
    add = Output.add

    def add_slowly(self: Output, shown: list[dict[str, Any]]) -> None:
        time.sleep(7)
        add(self, shown)

    monkeypatch.setattr(Output, "add", add_slowly)
    outcome = messages("receive", queue, "--count", "2")
    assert (outcome.code, outcome.err, len(outcome.out.splitlines())) == (0, "", 2)
    assert active(broker, queue) == 0


async def unanswered(self: Receiver, messages: Any, **options: Any) -> None:
    """Stand for a completion that the service never confirms."""
    raise TransportError("no answer")


def test_messages_that_were_not_completed_are_told(
    messages: Messages, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that takes exit code 0 for done would not expect these messages to come again."""

    messages.done("send", queue_name, "a")
    monkeypatch.setattr(Receiver, "complete", unanswered)
    outcome = messages("receive", queue_name)
    assert (outcome.code, json.loads(outcome.out)["body"]) == (1, "a")
    assert "1 message could not be completed" in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        ("move", "1 of them could not be completed: in both places"),
        ("purge", "1 of them could not be completed: still "),
    ],
)
def test_exit_code_tells_that_messages_were_not_completed(
    messages: Messages, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, verb: str, text: str
) -> None:
    """Exit code 0 says that all is done, and a script goes on."""
    source, to = make_queue(), make_queue()
    messages.done("send", source, "a")
    monkeypatch.setattr(Receiver, "complete", unanswered)
    words = (to,) if verb == "move" else ("--yes",)
    outcome = messages(verb, source, "--where", "1 = 1", *words)
    assert (outcome.code, text in outcome.out) == (1, True), outcome
    assert messages.bodies(source) == ["a"]


# ── input ──


def until_active(broker: BrokerProcess, queue: str, count: int) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while active(broker, queue) != count:
        assert time.monotonic() < give_up_s, f"{queue} has {active(broker, queue)} messages, not {count}"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("command", "lines", "told", "number"),
    [
        (("send", "--lines"), b"first\nsec", "; 1 line of standard input was read and not sent", signal.SIGINT),
        (("send", "--jsonl"), b'{"body": "first"}\n', "sent 1 message", signal.SIGTERM),
        (
            ("import", "-"),
            b'{"body": "a"}\n{"body"',
            "; 1 line of standard input was read and not sent",
            signal.SIGTERM,
        ),
    ],
    ids=["--lines", "--jsonl", "import"],
)
def test_line_is_sent_at_once_and_a_signal_ends_the_wait(
    messages: Messages,
    queue_name: str,
    broker: BrokerProcess,
    command: tuple[str, str],
    lines: bytes,
    told: str,
    number: signal.Signals,
) -> None:
    """A program that writes a line now and then expects it to arrive, and the command to end when it is told to."""
    with started(command[0], queue_name, command[1]) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(lines)
        process.stdin.flush()
        until_active(broker, queue_name, 1)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 130
        said = process.stderr.read().decode()
    assert len(said.splitlines()) == 1, said
    assert "interrupted: " in said and "1 message" in said and told in said
    assert ("was read and not sent" in said) == ("was read and not sent" in told)


def test_signal_ends_the_wait_for_a_body(messages: Messages, queue_name: str, broker: BrokerProcess) -> None:
    """A body that was read in part is not sent."""
    with started("send", queue_name) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"a line\n" * 100_000)  # more than the pipe holds: returns when most of it was read
        process.stdin.flush()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 130
        assert b" lines of standard input were read and not sent" in process.stderr.read()
    assert active(broker, queue_name) == 0


def test_long_lines_arrive_whole(messages: Messages, queue_name: str) -> None:
    """A pipe gives them in pieces; the last line may have no end."""
    given = ["a" * 200_000, "", "b\r", "c" * 70_000, "end"]
    with started("send", queue_name, "--lines") as process:
        process.communicate("\n".join(given).encode(), timeout=PATIENCE_S)
    assert process.returncode == 0
    assert messages.bodies(queue_name) == [text.rstrip("\r") for text in given]
