"""`pairbus syphon` and `pairbus redrive` as processes, on real namespaces, with the genuine SDK before and after."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from pairbus.cli import main
from pairbus.client.sides import Side
from pairbus.ledger import read
from tests.backlog import put_diverted_sync
from tests.brokers import BrokerProcess
from tests.cli.command import Command
from tests.scripted import Reject, ScriptedThread

RUN_S = 40.0  # for a command that takes two seconds, on a machine that is busy with other things
NAME = "contoso"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        tmp_path_factory.mktemp("bus") / "data", namespaces=("contoso", "fabrikam", "spare"), strict=True
    ) as process:
        admin = process.admin("fabrikam")
        for index in range(3):
            admin.create_queue(f"{NAME}/x-servicebus-transfer/{index}")
        admin.close()
        yield process


@pytest.fixture
def queue_name(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)[:60]
    for namespace in ("contoso", "spare"):
        admin = broker.admin(namespace)
        admin.create_queue(name)
        admin.close()
    return name


def environment(broker: BrokerProcess) -> dict[str, str]:
    return {
        **os.environ,
        "PAIRBUS_PRIMARY": broker.connection_string("contoso"),
        "PAIRBUS_SECONDARY": broker.connection_string("fabrikam"),
        "PAIRBUS_CONNECTION_STRING": broker.connection_string("contoso"),
    }


def run(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pairbus", *arguments]
    done = subprocess.run(command, env=environment(broker), capture_output=True, text=True, timeout=RUN_S, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert "SAS_KEY_VALUE" not in done.stdout + done.stderr
    return done


class RunningSyphon:
    """`pairbus syphon` that runs until the test stops it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def says(self, words: str) -> None:
        """Wait for a line on standard error with these words."""
        assert self._process.stderr is not None
        while words not in (line := self._process.stderr.readline()):
            assert line, f"the syphon ended without a line with {words!r}"

    def stop(self) -> tuple[int, str, str]:
        """Ask the syphon to end; return its exit code, its output and the rest of its standard error."""
        self._process.send_signal(signal.SIGTERM)
        out, err = self._process.communicate(timeout=RUN_S)
        return self._process.returncode, out, err


@contextmanager
def running_syphon(broker: BrokerProcess, *options: str) -> Iterator[RunningSyphon]:
    command = [sys.executable, "-m", "pairbus", "syphon", "--primary-name", NAME, *options]
    with subprocess.Popen(
        command, env=environment(broker), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield RunningSyphon(process)
        finally:
            process.kill()


def code_of(arguments: list[str]) -> int:
    """The exit code of a command in this process."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def divert(broker: BrokerProcess, path: str, count: int, queue: int = 0) -> list[str]:
    """Messages as a paired client leaves them in a backlog queue; their bodies."""
    bodies = [f"{path}-{number}" for number in range(count)]
    messages = [ServiceBusMessage(body) for body in bodies]
    put_diverted_sync(broker.connection_string("fabrikam"), f"{NAME}/x-servicebus-transfer/{queue}", path, messages)
    return bodies


def receive(
    broker: BrokerProcess, path: str, count: int, namespace: str = "contoso"
) -> list[ServiceBusReceivedMessage]:
    """Take messages out of a queue, as many receptions as it takes; fewer when none comes for five seconds."""
    found: list[ServiceBusReceivedMessage] = []
    with (
        ServiceBusClient.from_connection_string(broker.connection_string(namespace)) as client,
        client.get_queue_receiver(path, receive_mode="receiveanddelete") as receiver,
    ):
        while len(found) < count:
            batch = receiver.receive_messages(max_message_count=100, max_wait_time=5)
            if not batch:
                break
            found += batch
    return found


def drain(broker: BrokerProcess, path: str, count: int, namespace: str = "contoso") -> list[str]:
    """Take messages out of a queue; their bodies."""
    return [str(message) for message in receive(broker, path, count, namespace)]


def dead_letter(broker: BrokerProcess, path: str, count: int) -> None:
    """Dead letters m0, m1 … of a queue of contoso."""
    with ServiceBusClient.from_connection_string(broker.connection_string("contoso")) as client:
        client.get_queue_sender(path).send_messages(
            [ServiceBusMessage("poison", message_id=f"m{n}") for n in range(count)]
        )
        with client.get_queue_receiver(path) as receiver:
            while count:
                for message in receiver.receive_messages(max_message_count=count, max_wait_time=5):
                    receiver.dead_letter_message(message, reason="test", error_description="on purpose")
                    count -= 1


def test_once_brings_everything_home_and_says_how_much(broker: BrokerProcess, queue_name: str, tmp_path: Path) -> None:
    """The ledger has a row for each message, so that its journey can be read."""
    bodies = divert(broker, queue_name, 25) + divert(broker, queue_name, 1, queue=2)
    done = run(broker, "syphon", "--primary-name", NAME, "--once", "--ledger", str(tmp_path / "ledger"))
    assert (done.returncode, done.stdout) == (0, "moved 26 messages\n")
    assert "3 backlog queues of contoso" in done.stderr
    assert sorted(drain(broker, queue_name, 26)) == sorted(bodies)
    assert sum(row.kind == "moved" for row in read(tmp_path / "ledger")) == 26


def test_once_needs_no_package_of_spark(broker: BrokerProcess, queue_name: str) -> None:
    """An installation of `pairbus[broker]` alone drains a backlog too."""
    divert(broker, queue_name, 3)
    blocked = "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'pyarrow', 'pandas')));"
    command = [sys.executable, "-c", f"{blocked} from pairbus.cli import main; main()", "syphon", "--once"]
    command += ["--primary-name", NAME]
    done = subprocess.run(command, env=environment(broker), capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "moved 3 messages" in done.stdout


def test_once_exits_with_1_when_messages_had_to_stay_and_says_why(broker: BrokerProcess, queue_name: str) -> None:
    """A script that drains before it deletes a namespace must notice, also when others have the messages locked."""
    divert(broker, f"{queue_name}-missing", 2, queue=1)
    done = run(broker, "syphon", "--primary-name", NAME, "--once")
    assert (done.returncode, done.stdout) == (1, "moved 0 messages, 2 left\n")
    assert "could not be found" in done.stderr
    with (
        ServiceBusClient.from_connection_string(broker.connection_string("fabrikam")) as client,
        client.get_queue_receiver(f"{NAME}/x-servicebus-transfer/1") as other,
    ):
        locked = 0
        while locked < 2:  # both messages are in the queue, but one receive may return only one
            batch = other.receive_messages(max_message_count=2 - locked, max_wait_time=5)
            assert batch
            locked += len(batch)
        done = run(broker, "syphon", "--primary-name", NAME, "--once")
    assert (done.returncode, done.stdout) == (1, "moved 0 messages, 2 left\n")
    assert "2 of the remaining messages were not received: they arrived after the start, or are locked" in done.stderr
    with broker.admin("fabrikam") as admin:  # its messages stay locked for a minute
        admin.delete_queue(f"{NAME}/x-servicebus-transfer/1")
        admin.create_queue(f"{NAME}/x-servicebus-transfer/1")


def test_lines_that_nobody_reads_do_not_end_a_drain(broker: BrokerProcess, queue_name: str) -> None:
    """A log on a full disk, a pipe whose reader is gone."""
    command = [sys.executable, "-m", "pairbus", "syphon", "--primary-name", NAME, "--once"]
    divert(broker, queue_name, 3)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, env=environment(broker), stdout=subprocess.PIPE, stderr=full, timeout=RUN_S, check=False
        )
    assert (done.returncode, done.stdout) == (0, b"moved 3 messages\n")
    ours, theirs = os.pipe()
    os.close(ours)
    divert(broker, queue_name, 3)
    done = subprocess.run(
        command, env=environment(broker), stdout=subprocess.PIPE, stderr=theirs, timeout=RUN_S, check=False
    )
    os.close(theirs)
    assert (done.returncode, done.stdout) == (0, b"moved 3 messages\n")
    assert len(drain(broker, queue_name, 6)) == 6


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_summary_that_cannot_be_written_is_an_error(broker: BrokerProcess, unbuffered: str) -> None:
    """The error ends with one line and no traceback. A script that gets no number must not read it as zero."""
    command = [sys.executable, "-m", "pairbus", "syphon", "--primary-name", NAME, "--once"]
    with open("/dev/full", "w") as full:
        env = {**environment(broker), "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, timeout=RUN_S, check=False)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1].startswith("pairbus: ")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_may_be_started_with_closed_files(broker: BrokerProcess, closed: str) -> None:
    """Some supervisors start commands so."""
    line = f"{sys.executable} -m pairbus syphon --primary-name {NAME} --once {closed}"
    done = subprocess.run(["/bin/sh", "-c", line], env=environment(broker), timeout=RUN_S, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("secondary", "there"),
    [("fabrikam", "it has those of contoso"), ("spare", "nor of any other primary: `pairbus pair create`")],
)
def test_a_name_without_backlog_queues_is_an_error(broker: BrokerProcess, secondary: str, there: str) -> None:
    """A misspelt name would otherwise be a drain that ends well and moves nothing."""
    where = ("--secondary", broker.connection_string(secondary))
    done = run(broker, "syphon", "--primary-name", "contso", *where)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"has no backlog queues contso/x-servicebus-transfer/0 …; {there}" in done.stderr


def test_backlog_queues_that_cannot_be_listed_are_tried(
    broker: BrokerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key with Listen and Send tries the queues by number: a deleted one does not hide those behind it."""
    with broker.admin("fabrikam") as admin:
        admin.create_queue(f"{NAME}/x-servicebus-transfer/11")
        bodies = divert(broker, queue_name, 2, queue=2) + divert(broker, queue_name, 1, queue=11)

        def refuse(_: Side) -> None:
            raise ClientAuthenticationError("Manage claim is required")

        monkeypatch.setattr(Side, "new_admin", refuse)
        ends = [
            word
            for side in ("primary", "secondary")
            for word in (f"--{side}", environment(broker)[f"PAIRBUS_{side.upper()}"])
        ]
        assert code_of(["syphon", "--once", "--primary-name", NAME, *ends]) == 0
        out, err = capsys.readouterr()
        assert out == "moved 3 messages\n" and "4 backlog queues of contoso" in err
        bodies += divert(broker, queue_name, 2, queue=0)
        disabled = admin.get_queue(f"{NAME}/x-servicebus-transfer/1")
        admin.update_queue(disabled, status="ReceiveDisabled")
        assert code_of(["syphon", "--once", "--primary-name", NAME, *ends]) == 1
        assert capsys.readouterr().out == "moved 2 messages\n", "a queue that cannot be read hides no other queue"
        admin.update_queue(disabled, status="Active")
        assert code_of(["syphon", "--once", "--primary-name", "contso", *ends]) == 1
        assert "has no backlog queues contso/x-servicebus-transfer/0" in capsys.readouterr().err
        admin.delete_queue(f"{NAME}/x-servicebus-transfer/11")
    assert sorted(drain(broker, queue_name, 5)) == sorted(bodies)


def test_what_was_moved_is_told_also_when_a_queue_cannot_be_read(broker: BrokerProcess, queue_name: str) -> None:
    """More queues were asked for than there are."""
    divert(broker, queue_name, 1)
    done = run(broker, "syphon", "--primary-name", NAME, "--backlog-queue-count", "4", "--once")
    assert (done.returncode, done.stdout) == (1, "moved 1 message\n")
    assert "could not be found" in done.stderr.splitlines()[-1]
    assert len(drain(broker, queue_name, 1)) == 1


def test_a_target_takes_what_the_primary_never_will(broker: BrokerProcess, queue_name: str) -> None:
    """The primary's name is all that is needed of it."""
    bodies = divert(broker, queue_name, 3, queue=2)
    target = broker.connection_string("spare")
    done = run(broker, "syphon", "--primary-name", NAME, "--backlog-queue-count", "3", "--once", "--target", target)
    assert (done.returncode, done.stdout) == (0, "moved 3 messages\n")
    assert sorted(drain(broker, queue_name, 3, "spare")) == bodies


def test_once_that_is_stopped_exits_with_1_and_says_so(broker: BrokerProcess, queue_name: str) -> None:
    """A stopped drain may not have moved all messages. It counts those that are left, as far as there is time."""
    divert(broker, queue_name, 900)
    with running_syphon(broker, "--once", "--max-messages-per-second", "100") as syphon:
        syphon.says("backlog queue")
        drain(broker, queue_name, 1)
        code, out, err = syphon.stop()
    assert code == 1, err
    assert re.fullmatch(r"moved \d+ messages, \d+ left\n", out), out
    assert "stopped before everything was moved" in err
    with broker.admin("fabrikam") as admin:
        admin.delete_queue(f"{NAME}/x-servicebus-transfer/0")
        admin.create_queue(f"{NAME}/x-servicebus-transfer/0")


def test_sigterm_ends_a_running_syphon(broker: BrokerProcess, queue_name: str) -> None:
    """The syphon waits in a long poll of fifteen minutes; its summary tells how many messages it moved until then."""
    with running_syphon(broker) as syphon:
        syphon.says("backlog queues")
        bodies = divert(broker, queue_name, 5)
        assert sorted(drain(broker, queue_name, 5)) == bodies
        code, out, err = syphon.stop()
    assert (code, out) == (0, "moved 5 messages\n"), err


def test_sigterm_after_the_first_line_is_a_clean_end(broker: BrokerProcess) -> None:
    """A supervisor may stop a syphon at once; that is no failure."""
    with running_syphon(broker) as syphon:
        syphon.says("backlog queues")
        code, out, err = syphon.stop()
    assert (code, out) == (0, "moved 0 messages\n"), err


SIGNALLED_LATE = """
import asyncio, os, signal, sys
from pairbus.cli import main

sys.modules["uvloop"] = None
close = asyncio.Runner.close

def close_and_signal(runner):
    close(runner)
    os.kill(os.getpid(), signal.SIGTERM)

asyncio.Runner.close = close_and_signal
main()
"""
"""The command, to which a signal comes in the moment after its event loop was closed. The loop is Python's, which takes
its handlers away then; that of uvloop leaves them."""


def test_sigterm_after_the_summary_does_not_change_the_exit_code(broker: BrokerProcess) -> None:
    """A finished drain that looks interrupted would be repeated, or reported as a failure."""
    command = [sys.executable, "-c", SIGNALLED_LATE, "syphon", "--primary-name", NAME, "--once"]
    done = subprocess.run(command, env=environment(broker), capture_output=True, text=True, timeout=RUN_S, check=False)
    assert (done.returncode, done.stdout) == (0, "moved 0 messages\n"), done.stderr


def test_a_syphon_that_is_stopped_says_what_is_blocked(broker: BrokerProcess, queue_name: str) -> None:
    """Blocked messages are reported also when the last pass was about other messages."""
    divert(broker, f"{queue_name}-missing", 2, queue=1)
    with running_syphon(broker) as syphon:
        syphon.says("pump pauses")
        divert(broker, queue_name, 1, queue=1)
        assert len(drain(broker, queue_name, 1)) == 1
        time.sleep(1.5)  # a pass ends when no message came for a second
        code, out, err = syphon.stop()
    assert (code, out) == (0, "moved 1 message, 2 left\n"), err
    assert f"{queue_name}-missing: " in err.splitlines()[-1]
    with broker.admin("fabrikam") as admin:  # its messages stay locked for a minute
        admin.delete_queue(f"{NAME}/x-servicebus-transfer/1")
        admin.create_queue(f"{NAME}/x-servicebus-transfer/1")


def test_dead_letters_go_back_to_their_queue(broker: BrokerProcess, queue_name: str) -> None:
    """The messages come back without the two properties that said why they were dead-lettered."""
    dead_letter(broker, queue_name, 2)
    done = run(broker, "redrive", f"{queue_name}/$deadLetterQueue")  # the name of the queue works too
    assert (done.returncode, done.stdout) == (0, "moved 2 messages\n")
    back = receive(broker, queue_name, 2)
    assert sorted(str(message.message_id) for message in back) == ["m0", "m1"]
    assert all(message.dead_letter_reason is None for message in back)


def test_a_redrive_loses_nothing_where_the_queue_detects_duplicates(broker: BrokerProcess) -> None:
    """The queue is asked for its window: letters that it may remember stay, or go under new ids if wanted."""
    admin = broker.admin("contoso")
    for name in ("remembers", "renamed"):
        admin.create_queue(name, requires_duplicate_detection=True)
        dead_letter(broker, name, 3)
    done = run(broker, "redrive", "remembers")
    assert (done.returncode, done.stdout) == (1, "moved 0 messages, 3 left\n")
    assert "remembers 3 messages stay dead-lettered: MaybeRemembered" in done.stderr and "--new-ids" in done.stderr
    assert admin.get_queue_runtime_properties("remembers").dead_letter_message_count == 3
    for name in ("renamed", "remembers"):  # the dead letters of both are not locked any more
        done = run(broker, "redrive", name, "--new-ids")
        assert (done.returncode, done.stdout) == (0, "moved 3 messages\n")
        assert admin.get_queue_runtime_properties(name).active_message_count == 3
    admin.close()


def test_a_redrive_that_may_not_ask_takes_the_longest_window(
    broker: BrokerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key without the Manage claim must not lose messages; a user who knows the window gives it as an option."""

    def refuse(_: Side) -> None:
        raise ClientAuthenticationError("Manage claim is required")

    monkeypatch.setattr(Side, "new_admin", refuse)
    key = ["--connection-string", broker.connection_string("contoso")]
    dead_letter(broker, queue_name, 1)
    assert code_of(["redrive", queue_name, *key]) == 1
    out, err = capsys.readouterr()
    assert out == "moved 0 messages, 1 left\n"
    assert f"whether {queue_name} detects duplicates cannot be read (Manage claim is required)" in err
    assert code_of(["redrive", queue_name, "--duplicate-window", "0", *key]) == 0
    assert capsys.readouterr().out == "moved 1 message\n"


def test_a_redrive_says_why_dead_letters_stay(broker: BrokerProcess, queue_name: str) -> None:
    """Refused as such, by a namespace that takes everything else: a person has to look at them."""
    dead_letter(broker, queue_name, 2)
    with ScriptedThread() as other:
        other.on("transfer", Reject("com.microsoft:argument-error", "the label is wrong"), path=queue_name)
        done = run(broker, "redrive", queue_name, "--target", other.connection_string, "--duplicate-window", "0")
    assert (done.returncode, done.stdout) == (1, "moved 0 messages, 2 left\n")
    assert f"{queue_name} message m0 stays dead-lettered: RefusedByDestination" in done.stderr
    assert "the label is wrong" in done.stderr


def test_redrive_of_a_missing_queue_says_so_and_not_that_it_moved_nothing(broker: BrokerProcess) -> None:
    """A summary would look like success."""
    done = run(broker, "redrive", "nope")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1 and "nope" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["syphon", "--secondary", ""], "PAIRBUS_SECONDARY"),
        (["syphon", "--primary-name", "no/segment"], "primary_name"),
        (["syphon", "--secondary", "nonsense"], "connection string"),
        (["syphon", "--max-messages-per-second", "0"], "max-messages-per-second"),
        (["syphon", "--max-messages-per-second", "inf"], "1000000 messages a second"),
        (["redrive", "orders", "--max-messages-per-second", "nan"], "1000000 messages a second"),
        (["syphon", "--backlog-queue-count", "10001"], "backlog-queue-count"),
        (["syphon", "--primary", "", "--target", "@x"], "Give --primary-name NAME, or --primary CS"),
        (["syphon", "--journal", "/tmp/journal"], "need --engine spark"),
        (["redrive", "orders", "--checkpoint", "/tmp/notes"], "need --engine spark"),
        (["spool", "drain", "/tmp", "--backlog-queue-count", "10001"], "backlog-queue-count"),
        (["syphon", "--ca-file", "/no/such/file"], "--ca-file: no certificates can be read from /no/such/file"),
        (["redrive", "orders", "--ca-file", "/dev/null"], "--ca-file: no certificates can be read from /dev/null"),
        (["spool", "drain", "/tmp", "--ca-file", "/dev"], "--ca-file: no certificates can be read from /dev"),
        (["pair", "create", "--ca-file", "/no/such/file"], "--ca-file: no certificates can be read"),
        (["redrive", "orders", "--target", "@/no/such/file"], "cannot be read"),
    ],
)
def test_bad_input_is_named_by_the_error(
    broker: BrokerProcess,
    arguments: list[str],
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command ends with an error that names the option or the file."""
    for name, value in environment(broker).items():
        monkeypatch.setenv(name, value)
    done = Command(capsys)(*arguments)
    assert done.code in (1, 2)
    assert word.lower() in done.err.lower()
