"""Reset of a broker in a process of its own: by command, and with a kill in the middle."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.brokers import BrokerProcess
from tests.cli.command import Command

QUEUES = ("orders", "invoices", "bills")
COUNT = 400  # more than one step of the sweep


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
        pass  # it was killed
    finally:
        connection.close()


@pytest.mark.slow
def test_kill_during_a_reset_leaves_all_or_nothing(process: BrokerProcess) -> None:
    """Every queue is full or every queue is empty; what is left can be received, and the rest is swept."""
    dice = random.Random(15)
    for _ in range(4):
        fill(process)
        resetting = threading.Thread(target=post_reset, args=(process,))
        resetting.start()
        time.sleep(dice.uniform(0, 0.1))  # the moment of the kill
        process.restart()
        resetting.join()
        found = counts(process)
        assert set(found.values()) in ({COUNT}, {0}), found
        assert "damage" not in process.stderr and "not served" not in process.stderr
        with ServiceBusClient.from_connection_string(process.connection_string()) as client:
            for queue in QUEUES if found["orders"] else ():
                with client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
                    left = COUNT
                    while left:
                        left -= len(receiver.receive_messages(left, max_wait_time=5))
        assert set(counts(process).values()) == {0}
    assert process.terminate() == 0


def test_command_resets_a_namespace(process: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """It asks unless it is told not to; entities stay or go."""
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
