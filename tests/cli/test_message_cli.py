"""`pairbus message`: what is printed, what is changed, and how a user's mistake is answered."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.cli.standard import STOPPING
from tests.brokers import BrokerProcess
from tests.cli.command import Command, Outcome
from tests.conftest import MakeQueue


class Messages:
    """The command with a namespace, and its messages as objects."""

    def __init__(self, broker: BrokerProcess, command: Command, patch: pytest.MonkeyPatch) -> None:
        self._command = command
        self._patch = patch
        patch.setenv("PAIRBUS_CONNECTION_STRING", broker.connection_string("contoso"))

    def __call__(self, *arguments: str, stdin: bytes | None = None) -> Outcome:
        if stdin is not None:
            self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        return self._command("message", *arguments)

    def done(self, *arguments: str, stdin: bytes | None = None) -> str:
        outcome = self(*arguments, stdin=stdin)
        assert outcome.code == 0, outcome.err
        return outcome.out

    def peeked(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.done("peek", *arguments, "--all", "-o", "json"))
        return found

    def bodies(self, *arguments: str) -> list[str]:
        return [one["body"] for one in self.peeked(*arguments)]


@pytest.fixture
def messages(broker: BrokerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Messages:
    return Messages(broker, Command(capsys), monkeypatch)


def test_body_is_the_argument_or_standard_input(messages: Messages, queue_name: str) -> None:
    """A pipe is as good as an argument; bytes that are no text are kept."""
    assert messages.done("send", queue_name, "one") == "sent 1 message\n"
    messages.done("send", queue_name, stdin=b"two\nlines\n")
    messages.done("send", queue_name, stdin=b"\xff\x00")
    messages.done("send", queue_name, "--lines", stdin=b"a\nb\r\n")
    messages.done("send", queue_name, "--count", "2", "many")
    assert messages.bodies(queue_name) == ["one", "two\nlines\n", "/wA=", "a", "b", "many", "many"]


def test_properties_keep_their_types_for_the_sdk(messages: Messages, queue_name: str, broker: BrokerProcess) -> None:
    """The genuine SDK receives what was typed."""
    given = ("-p", "amount:int=5", "-p", "vip:boolean=true", "-p", "name=x", "--subject", "s", "--ttl", "5m")
    messages.done("send", queue_name, "body", "--message-id", "m", "--correlation-id", "c", *given)
    with (
        ServiceBusClient.from_connection_string(broker.connection_string("contoso")) as client,
        client.get_queue_receiver(queue_name) as receiver,
    ):
        [got] = receiver.receive_messages(1, 5)
        assert (got.message_id, got.correlation_id, got.subject, str(got)) == ("m", "c", "s", "body")
        assert got.application_properties == {b"amount": 5, b"vip": True, b"name": b"x"}
        assert got.time_to_live is not None and got.time_to_live.total_seconds() == 300


def test_every_format_has_the_fields_that_programs_rely_on(messages: Messages, queue_name: str) -> None:
    """The formats are one array, one object a line, and a table with one line for each message."""
    messages.done("send", queue_name, "--lines", stdin=b"a\nb\n")
    array = json.loads(messages.done("peek", queue_name, "-o", "json"))
    lines = [json.loads(line) for line in messages.done("peek", queue_name, "-o", "jsonl").splitlines()]
    assert array == lines
    assert all({"sequence_number", "message_id", "body"} <= set(one) for one in lines)
    table = messages.done("peek", queue_name).splitlines()
    assert table[0].split("\t")[0] == "sequence_number"
    assert [row.split("\t")[-1] for row in table[1:]] == ["a", "b"]
    assert json.loads(messages.done("peek", queue_name, "--grep", "nothing", "-o", "json")) == []


def test_terminal_escapes_are_shown_not_obeyed(messages: Messages, queue_name: str) -> None:
    """A body must not be able to move the cursor, set a title or turn the direction of the text."""
    messages.done("send", queue_name, stdin="\x1b[2J\x9b31m\u202etxt\n".encode())
    table = messages.done("peek", queue_name)
    assert "\\x1b[2J\\x9b31m\\u202etxt\\n" in table
    for output in (table, messages.done("peek", queue_name, "-o", "json")):
        assert not set(output) & {"\x1b", "\x9b", "\u202e"}
    assert messages.bodies(queue_name) == ["\x1b[2J\x9b31m\u202etxt\n"]


def test_messages_are_chosen_by_sql_and_by_text(messages: Messages, queue_name: str) -> None:
    """The two options may be combined; a wrong filter is explained, and no message is touched."""
    for number in range(4):
        messages.done("send", queue_name, f"body {number}", "-p", f"n:int={number}")
    assert messages.bodies(queue_name, "--where", "n > 1") == ["body 2", "body 3"]
    assert messages.bodies(queue_name, "--where", "n > 1", "--grep", "BODY 3") == ["body 3"]
    wrong = messages("purge", queue_name, "--where", "n >", "--yes")
    assert (wrong.code, "--where" in wrong.err) == (2, True)
    assert len(messages.peeked(queue_name)) == 4


def test_receive_takes_messages_out(messages: Messages, queue_name: str) -> None:
    """Completed after they were printed; an empty queue is told by the exit code."""
    messages.done("send", queue_name, "--lines", stdin=b"a\nb\nc\n")
    assert json.loads(messages.done("receive", queue_name))["body"] == "a"
    assert json.loads(messages.done("receive", queue_name, "--receive-and-delete"))["body"] == "b"
    assert json.loads(messages.done("receive", queue_name, "--count", "5", "--wait", "100ms"))["body"] == "c"
    empty = messages("receive", queue_name, "--wait", "50ms")
    assert (empty.code, empty.out) == (1, "")
    assert "has no message that could be received" in empty.err


def test_export_and_import_keep_messages(messages: Messages, make_queue: MakeQueue, tmp_path: Path) -> None:
    """Messages go to a file and back, or through a pipe."""
    source, copy, file = make_queue(), make_queue(), tmp_path / "out.jsonl"
    messages.done("send", source, "body", "-p", "n:short=7", "--session", "s")
    assert messages.done("export", source, "--out", str(file)) == "exported 1 message\n"
    assert messages.done("import", copy, str(file)) == "imported 1 message\n"
    messages.done("import", copy, "-", stdin=messages.done("export", source).encode())
    for one in messages.peeked(copy):
        assert (one["body"], one["session_id"]) == ("body", "s")
        assert one["application_properties"] == {"n": {"type": "short", "value": "7"}}
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_move_between_namespaces_and_purge(
    messages: Messages, make_queue: MakeQueue, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that were not chosen stay; purge asks first unless --yes is given."""
    source, other = make_queue(), make_queue()
    with broker.admin("fabrikam") as admin:
        admin.create_queue(source)
    for number in range(4):
        messages.done("send", source, f"b{number}", "-p", f"n:int={number}")
    elsewhere = broker.connection_string("fabrikam")
    moved = messages.done("move", source, source, "--where", "n = 1", "--target", elsewhere)
    assert moved == "moved 1 message\n"
    assert messages.bodies(source, "--connection-string", elsewhere) == ["b1"]
    assert messages.done("move", source, other, "--limit", "1") == "moved 1 message\n"
    assert messages.bodies(other) == ["b0"]
    asked = messages("purge", source)
    assert (asked.code, "Give --yes" in asked.err) == (1, True)
    assert messages.done("purge", source, "--yes") == "deleted 2 messages\n"
    assert messages.peeked(source) == []


def test_prompt_has_the_count_and_only_counted_messages_go(
    messages: Messages, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that arrives while the question waits was not in it."""
    source, other = make_queue(), make_queue()
    messages.done("send", source, "--lines", stdin=b"a\nb\nc\n")
    questions: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        questions.append(question)
        messages.done("send", source, f"late {len(questions)}")
        return True

    monkeypatch.setattr("typer.confirm", confirm)
    monkeypatch.setattr("pairbus.cli.messages.moving.is_asked", lambda: True)
    assert messages.done("move", source, other) == "moved 3 messages\n"
    assert messages.done("move", source, other, "--limit", "1") == "moved 1 message\n"
    messages.done("send", source, "--lines", stdin=b"delta\nepsilon\n")
    assert messages.done("purge", source, "--grep", "DELTA") == "deleted 1 message\n"
    assert messages.done("purge", source) == "deleted 2 messages\n"
    assert messages.bodies(source) == ["late 3"]
    assert questions == [
        f"Move 3 messages of {source} to {other}, all of them?",
        f"Delete 1 message of {source}, those that were chosen?",
        f"Delete 2 messages of {source}, all of them?",
    ]
    assert messages.done("purge", source, "--grep", "nothing") == f"{source} has no such message\n"


def test_dead_letters_are_reached_by_option_and_by_path(
    messages: Messages, queue_name: str, make_queue: MakeQueue, broker: BrokerProcess
) -> None:
    """The reason of a dead letter is a column of the table."""
    with ServiceBusClient.from_connection_string(broker.connection_string("contoso")) as client:
        with client.get_queue_sender(queue_name) as sender:
            sender.send_messages(ServiceBusMessage("bad"))
        with client.get_queue_receiver(queue_name) as receiver:
            [got] = receiver.receive_messages(1, 5)
            receiver.dead_letter_message(got, reason="Poison")
    [shown] = messages.peeked(queue_name, "--dead-letter")
    assert (shown["dead_letter_reason"], shown["body"]) == ("Poison", "bad")
    assert "Poison" in messages.done("peek", f"{queue_name}/$DeadLetterQueue")
    where = ("--where", "DeadLetterReason = 'Poison'")
    back = messages("move", queue_name, queue_name, "-d", *where)
    assert (back.code, "`pairbus redrive` sends dead letters back" in back.err) == (1, True)
    other = make_queue()
    assert messages.done("move", queue_name, other, "-d", *where) == "moved 1 message\n"
    assert messages.bodies(other) == ["bad"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("peek", "nowhere"), 1, "nowhere does not exist in 127.0.0.1:"),
        (("send", "nowhere", "x"), 1, "nowhere does not exist in 127.0.0.1:"),
        (("move", "nowhere", "there", "--yes"), 1, "nowhere does not exist"),
        (("move", "q", "there"), 1, "Move all messages of q to there? Give --yes where nobody can be asked"),
        (("purge", "q", "--grep", "", "--yes"), 2, "--grep is empty: leave it out, or say what to look for"),
        (("purge", "q", "--where", "", "--yes"), 2, "--where is empty"),
        (("purge", "q", "--session", "", "--yes"), 2, "--session is empty"),
        (("move", "q", "there", "--grep", ""), 2, "--grep is empty"),
        (("export", "q", "--where", ""), 2, "--where is empty"),
        (("peek", "q", "--grep", ""), 2, "--grep is empty"),
        (("tail", "q", "--session", ""), 2, "--session is empty"),
        (("receive", "q", "--where", ""), 2, "--where is empty"),
        (("peek", "/"), 1, "names no entity"),
        (("send", "t/Subscriptions/s", "x"), 2, "messages are sent to a queue or topic"),
        (("send", "q", "x", "-p", "n:int=x"), 1, "message 1: field application_properties.n: 'x' is no int"),
        (("send", "q", "x", "-p", "n"), 2, "NAME=VALUE or NAME:TYPE=VALUE is needed"),
        (("send", "q", "x", "--lines"), 2, "give one of BODY, --lines and --jsonl"),
        (("send", "q", "x", "--ttl", "5 apples"), 2, "is no duration; write seconds, or a duration such as 30s"),
        (("import", "q", "missing.jsonl"), 1, "missing.jsonl cannot be read: No such file"),
        (("move", "q", "q", "--yes"), 1, "q is both source and destination"),
        (("peek", "q", "-o", "xml"), 2, "xml"),
        (("peek", "q", "--from", "99999999999999999999"), 2, "9223372036854775807"),
        (("export", "q", "--to", "9" * 30), 2, "9223372036854775807"),
        (("send", "\udcff", "x"), 2, "'\\udcff' is not text in UTF-8"),
        (("send", "q", "\udcff"), 2, "'\\udcff' is not text in UTF-8"),
        (("send", "q", "x", "-p", "n=\udcff"), 2, "'n=\\udcff' is not text in UTF-8"),
        (("peek", "q", "--session", "\udcff"), 2, "'\\udcff' is not text in UTF-8"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    messages: Messages, arguments: tuple[str, ...], code: int, text: str
) -> None:
    """No stack trace, and the text says what is right."""
    outcome = messages(*arguments)
    assert outcome.code == code, outcome.err
    assert text in outcome.err


def test_wrong_line_of_objects_is_named(messages: Messages, queue_name: str) -> None:
    """Messages before it are sent: the count says how many."""
    outcome = messages("send", queue_name, "--jsonl", stdin=b'{"body": "a"}\n{"boddy": "b"}\n')
    assert outcome.code == 1
    assert "message 2: field 'boddy' is not known" in outcome.err
    assert messages.bodies(queue_name) == ["a"]


@pytest.mark.parametrize("field", ["scheduled_enqueue_time", "creation_time"])
def test_time_beyond_the_wire_is_told(messages: Messages, queue_name: str, tmp_path: Path, field: str) -> None:
    """A time is 64 bits on the wire."""
    line = b'{"body": "x", "%s": 1%s}\n' % (field.encode(), b"0" * 30)
    file = tmp_path / "late.jsonl"
    file.write_bytes(line)
    for outcome in (messages("send", queue_name, "--jsonl", stdin=line), messages("import", queue_name, str(file))):
        assert (outcome.code, f"field {field} is 1000" in outcome.err) == (1, True), outcome.err


def test_half_of_a_surrogate_pair_is_told(messages: Messages, queue_name: str, tmp_path: Path) -> None:
    """JSON can name characters that UTF-8 cannot write; programs that cut texts produce them."""
    line = b'{"subject": "\\ud83d"}\n'
    file = tmp_path / "cut.jsonl"
    file.write_bytes(line)
    for outcome in (messages("send", queue_name, "--jsonl", stdin=line), messages("import", queue_name, str(file))):
        assert (outcome.code, "field subject: '\\ud83d' is no string" in outcome.err) == (1, True), outcome.err


def test_bytes_that_are_no_text_are_told_without_codecs(messages: Messages, tmp_path: Path) -> None:
    """A picture instead of a file of messages, or of a connection string."""
    file = tmp_path / "picture.png"
    file.write_bytes(b"\x89PNG\r\n")
    for outcome in (
        messages("import", "q", str(file)),
        messages("send", "q", "--jsonl", stdin=file.read_bytes()),
        messages("peek", "q", "--connection-string", f"@{file}"),
    ):
        assert (outcome.code, "it is not text in UTF-8" in outcome.err) == (1, True), outcome.err


@pytest.mark.parametrize("verb", ["peek", "receive", "export"])
def test_topic_has_its_messages_in_subscriptions(messages: Messages, broker: BrokerProcess, verb: str) -> None:
    with broker.admin() as admin:
        admin.create_topic(f"topic-to-{verb}")
    outcome = messages(verb, f"topic-to-{verb}")
    assert outcome.code == 1
    assert f"in its subscriptions: topic-to-{verb}/Subscriptions/NAME" in outcome.err


def test_unreachable_host_is_told_as_such(messages: Messages) -> None:
    """Whether a broker runs is a fair question on this machine only."""
    key = "SharedAccessKeyName=k;SharedAccessKey=a2V5"
    local = f"Endpoint=sb://127.0.0.1:1;{key};UseDevelopmentEmulator=true"
    outcome = messages("peek", "q", "--connection-string", local)
    assert (outcome.code, "cannot reach 127.0.0.1:1" in outcome.err) == (1, True)
    assert "is the broker running?" in outcome.err
    away = messages("peek", "q", "--connection-string", f"Endpoint=sb://no-such-host.invalid;{key}")
    assert (away.code, "cannot reach no-such-host.invalid" in away.err) == (1, True)
    assert "broker running" not in away.err


def test_ctrl_c_after_the_work_does_not_change_the_exit_code(
    messages: Messages, queue_name: str, tmp_path: Path
) -> None:
    """Taken for interrupted, an import would be started again, and send everything twice."""
    file = tmp_path / "orders.jsonl"
    file.write_text('{"body": "x"}\n')
    command = [sys.executable, "-m", "pairbus", "message", "import", queue_name, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            assert process.stdout.readline() == b"imported 1 message\n"
            while process.poll() is None:  # until the process has ended, also while the interpreter shuts down
                process.send_signal(signal.SIGINT)
                time.sleep(0.002)
        finally:
            process.kill()
        assert (process.returncode, process.stderr.read()) == (0, b"")


def test_command_in_a_program_leaves_its_signals_alone(messages: Messages, queue_name: str) -> None:
    """A program that calls the command from Python still has Ctrl-C, and so have the processes that it starts."""
    before = [signal.getsignal(number) for number in STOPPING]
    messages.done("send", queue_name, "one")
    assert [signal.getsignal(number) for number in STOPPING] == before
