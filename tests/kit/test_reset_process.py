"""Reset of a broker in a process of its own: by command, and with a kill in the middle."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.brokers import BrokerProcess
from tests.cli.command import Command

QUEUES = ("orders", "invoices", "bills")
COUNT = 400  # more than one step of the sweep
DELAYS_S = (0.001, 0.005, 0.01, 0.03, 10.0)  # from the request to the kill; the last one is long after the answer


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", namespaces=["contoso"]) as process:
        with process.admin() as admin:
            for queue in QUEUES:
                admin.create_queue(queue)
        yield process


def fill(process: BrokerProcess) -> None:
    with ServiceBusClient.from_connection_string(process.connection_string()) as client:
        for queue in QUEUES:
            with client.get_queue_sender(queue) as sender:
                sender.send_messages([ServiceBusMessage(f"{queue} {n}") for n in range(COUNT)])


def counts(process: BrokerProcess) -> dict[str, int]:
    with process.admin() as admin:
        return {one.name: one.total_message_count or 0 for one in admin.list_queues_runtime_properties()}


def post_reset(process: BrokerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", process.ports["contoso"], timeout=10)
    try:
        connection.request("POST", "/$pairbus/reset", headers={"Authorization": process.token("")})
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        pass  # the broker was killed before it answered
    finally:
        connection.close()


@pytest.mark.slow
def test_kill_during_a_reset_leaves_all_or_nothing(process: BrokerProcess) -> None:
    """Every queue is full or every queue is empty; after the answer it is empty, and the rest of the rows is swept."""
    for delay_s in DELAYS_S:
        if set(counts(process).values()) == {0}:
            fill(process)
        resetting = threading.Thread(target=post_reset, args=(process,))
        resetting.start()
        resetting.join(delay_s)
        is_answered = not resetting.is_alive()
        process.restart()
        resetting.join()
        found = counts(process)
        assert set(found.values()) in ([{0}] if is_answered else [{COUNT}, {0}]), (delay_s, found)
        assert "damage" not in process.stderr and "not served" not in process.stderr
        if found["orders"]:
            assert received_count(process) == COUNT * len(QUEUES)
    assert process.terminate() == 0


def received_count(process: BrokerProcess) -> int:
    """Receive every message that there is."""
    count = 0
    with ServiceBusClient.from_connection_string(process.connection_string()) as client:
        for queue in QUEUES:
            with client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
                left = COUNT
                while left > 0 and (more := receiver.receive_messages(left, max_wait_time=10)):
                    left -= len(more)
                count += COUNT - left
    return count


def test_command_resets_a_namespace(process: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """The command asks unless it is told not to; entities stay or go, as its options say."""
    command, given = Command(capsys), ("--connection-string", process.connection_string())
    fill(process)
    refused = command("namespace", "reset", *given)
    assert refused.code == 1 and "--yes" in refused.err
    assert set(counts(process).values()) == {COUNT}
    assert command("namespace", "reset", *given, "--yes").out == "emptied every entity\n"
    assert counts(process) == dict.fromkeys(QUEUES, 0)
    assert command("namespace", "reset", *given, "--yes", "--entities", "delete").out == "deleted every entity\n"
    assert counts(process) == {}


def test_command_says_why_a_reset_was_refused(process: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong key, nobody there."""
    command = Command(capsys)
    wrong = command("namespace", "reset", "--yes", "--connection-string", process.connection_string(key="wrong"))
    assert wrong.code == 1 and "refused the key" in wrong.err
    text = process.connection_string()
    process.kill()
    gone = command("namespace", "reset", "--yes", "--connection-string", text)
    assert gone.code == 1 and "is the broker running?" in gone.err
