"""`pairbus emulator` keeps the contract of Microsoft's emulator, as the tools that start its image rely on it.

`Started` does what the modules of Testcontainers, Aspire and Compose do with the image: variables, a configuration
file, published ports, and a wait for the log line (Java, Python), for `GET /health` (.NET, Node, Aspire) and for both
ports (Go).
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import CorrelationRuleFilter, ServiceBusAdministrationClient

from pairbus.auth.emulator import ca_file_with, fetch_ca
from pairbus.auth.gate import ForeignRequest, check_request_source
from pairbus.cli.serve.emulator import CONFIG_FILE, SERVED, UNNEEDED
from tests.cli.command import Command
from tests.limits import slowness

VARIABLES = {"ACCEPT_EULA": "Y", "SQL_SERVER": "mssql", "MSSQL_SA_PASSWORD": "P@ssword1!", "SQL_WAIT_INTERVAL": "0"}
"Variables that the modules set."

CONFIG = {
    "$schema": "./Config-schema.json",
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "orders",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": False,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "",
                            "LockDuration": "PT1M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": False,
                            "RequiresSession": False,
                        },
                    }
                ],
                "Topics": [
                    {
                        "Name": "events",
                        "Properties": {"DefaultMessageTimeToLive": "PT1H"},
                        "Subscriptions": [
                            {
                                "Name": "red",
                                "Properties": {"MaxDeliveryCount": 3},
                                "Rules": [
                                    {
                                        "Name": "by-colour",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {"Properties": {"colour": "red"}},
                                        },
                                    }
                                ],
                            }
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    },
}


class Started:
    """The emulator in a process of its own, with any free ports, as a container engine would map them."""

    def __init__(
        self, folder: Path, *arguments: str, config: Mapping[str, Any] | None = None, data: str = ":memory:"
    ) -> None:
        self.log = folder / "log"
        options = ["--port", "0", "--data", data, *arguments]
        if config is not None:
            (folder / "Config.json").write_text(json.dumps(config))
            options += ["--config", str(folder / "Config.json")]
        environment = {**os.environ, **VARIABLES, "EMULATOR_HTTP_PORT": "0", "PYTHONUNBUFFERED": "1"}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pairbus", "emulator", *options], stdout=log, stderr=log, env=environment
            )
        until = time.monotonic() + 60 * slowness()
        while SERVED not in self.lines():
            assert self._process.poll() is None and time.monotonic() < until, self.lines()
            time.sleep(0.02)
        [printed] = [line for line in self.lines() if " Endpoint=" in line]
        self.port = int(printed.split(";")[0].rpartition(":")[2])
        self.http_port = int(
            next(line for line in self.lines() if "administration and health" in line).rpartition(":")[2]
        )

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def connection_string(self, port: int) -> str:
        """The connection string that the modules of Testcontainers put together, with the mapped port."""
        return (
            f"Endpoint=sb://localhost:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        )

    def get(self, path: str, host: str = "localhost") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=20)
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        with answer:
            return answer.status, answer.read()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30 * slowness())

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    with Started(tmp_path_factory.mktemp("emulator"), config=CONFIG) as started:
        yield started


def test_waits_of_the_modules_end(emulator: Started) -> None:
    """The log line once, both ports, and 200 for `GET /health` under whatever name the container engine has."""
    assert [line for line in emulator.lines() if "Emulator Service is Successfully Up!" in line] == [SERVED]
    for port in (emulator.port, emulator.http_port):
        socket.create_connection(("127.0.0.1", port), 20).close()
    for host in (f"localhost:{emulator.http_port}", "servicebus-container:5300", "ci.docker.example:32771"):
        status, body = emulator.get("/health", host)
        assert (status, json.loads(body)["status"]) == (200, "healthy"), host


def test_unneeded_variables_are_told_once(emulator: Started) -> None:
    """Somebody who looks for the database in the log finds out that there is none."""
    assert set(UNNEEDED) == set(VARIABLES)
    told = [line for line in emulator.lines() if "SQL_SERVER" in line]
    assert told == [f"ignored, because neither a database nor a licence is needed: {', '.join(UNNEEDED)}"]
    assert "P@ssword1!" not in emulator.log.read_text()


def test_sdk_sends_and_receives_with_the_well_known_key(emulator: Started) -> None:
    """AMQP without TLS on the mapped port of 5672; entities and rules are those of the file."""
    with ServiceBusClient.from_connection_string(emulator.connection_string(emulator.port)) as client:
        with client.get_queue_sender("orders") as sender, client.get_topic_sender("events") as publisher:
            sender.send_messages(ServiceBusMessage("one"))
            for colour in ("red", "blue"):
                publisher.send_messages(ServiceBusMessage(colour, application_properties={"colour": colour}))
        with client.get_queue_receiver("orders", max_wait_time=20) as receiver:
            [message] = receiver.receive_messages(max_message_count=1)
            receiver.complete_message(message)
            assert str(message) == "one"
        with client.get_subscription_receiver("events", "red") as receiver:
            assert [str(message) for message in receiver.peek_messages(max_message_count=10)] == ["red"]


def test_administration_is_on_the_other_port(emulator: Started) -> None:
    """The administration client of the SDK is given the mapped port of 5300."""
    text = emulator.connection_string(emulator.http_port)
    with (
        ca_file_with(fetch_ca(f"localhost:{emulator.http_port}", 20)) as ca_file,
        ServiceBusAdministrationClient.from_connection_string(text, connection_verify=ca_file) as admin,
    ):
        assert admin.get_queue("orders").max_delivery_count == 3
        admin.create_queue("made-at-run-time")
        assert {queue.name for queue in admin.list_queues()} >= {"orders", "made-at-run-time"}


def test_key_that_is_not_known_is_told_and_ignored(emulator: Started) -> None:
    """The emulator ignores what its schema does not name, so files have such keys."""
    assert any("unknown key '$schema'" in line for line in emulator.lines())


def test_without_a_file_the_first_entities_are_served(tmp_path: Path) -> None:
    """Examples of the modules send to queue.1 without a configuration. SIGTERM, as of `docker stop`, ends it."""
    with Started(tmp_path) as started:
        assert any(str(CONFIG_FILE) in line for line in started.lines())
        with ServiceBusClient.from_connection_string(started.connection_string(started.port)) as client:
            with client.get_queue_sender("queue.1") as sender, client.get_topic_sender("topic.1") as publisher:
                sender.send_messages(ServiceBusMessage("one"))
                publisher.send_messages(ServiceBusMessage("two", application_properties={"prop1": "value1"}))
            found = {}
            for name in ("subscription.1", "subscription.2"):
                with client.get_subscription_receiver("topic.1", name) as receiver:
                    found[name] = len(receiver.peek_messages())
        assert found == {"subscription.1": 0, "subscription.2": 1}
        assert started.stop() == 0


def test_changed_file_changes_entities_and_keeps_messages(tmp_path: Path) -> None:
    """The official emulator makes every entity anew; here the messages of a data folder stay."""
    changed = json.loads(json.dumps(CONFIG).replace('"PT1M"', '"PT2M"').replace('"red"}', '"blue"}'))
    changed["UserConfig"]["Namespaces"][0]["Queues"][0]["Properties"]["RequiresSession"] = True
    data = str(tmp_path / "data")
    with Started(tmp_path, config=CONFIG, data=data) as started:
        client = ServiceBusClient.from_connection_string(started.connection_string(started.port))
        with client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("kept"))
        assert started.stop() == 0
    with Started(tmp_path, config=changed, data=data) as started:
        text = started.connection_string(started.http_port)
        with (
            ca_file_with(fetch_ca(f"localhost:{started.http_port}", 20)) as ca_file,
            ServiceBusAdministrationClient.from_connection_string(text, connection_verify=ca_file) as admin,
        ):
            assert admin.get_queue("orders").lock_duration == timedelta(minutes=2)
            assert admin.get_queue_runtime_properties("orders").active_message_count == 1
            found = admin.get_rule("events", "red", "by-colour").filter
            assert isinstance(found, CorrelationRuleFilter) and found.properties == {"colour": "blue"}
        assert any("requires_session of queue 'orders' is fixed" in line for line in started.lines())


def test_well_known_key_on_every_address_is_told_in_capitals(tmp_path: Path) -> None:
    """A container has to listen beyond the loopback; whoever publishes its ports must know what that means."""
    with Started(tmp_path, "--host", "0.0.0.0") as started:
        [warning] = [line for line in started.lines() if line.startswith("WARNING")]
    assert "EVERYBODY WHO REACHES THE PORTS" in warning
    with Started(tmp_path, "--host", "0.0.0.0", "--key", "a-key-of-my-own") as started:
        assert not any(line.startswith("WARNING") for line in started.lines())


def test_unknown_condition_of_a_filter_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rule without one of its conditions would select other messages."""
    file = tmp_path / "Config.json"
    file.write_text(
        json.dumps(CONFIG).replace('{"Properties": {"colour"', '{"PartitionKey": "a", "Properties": {"colour"')
    )
    outcome = Command(capsys)("emulator", "--config", str(file))
    assert outcome.code == 1 and "unknown key 'PartitionKey'" in outcome.err


def test_several_namespaces_are_for_the_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [{"Name": "one"}, {"Name": "two"}]
    file = tmp_path / "Config.json"
    file.write_text(json.dumps({"UserConfig": {"Namespaces": names}}))
    outcome = Command(capsys)("emulator", "--config", str(file))
    assert outcome.code == 1 and "has 2 namespaces, and the emulator serves one" in outcome.err


@pytest.mark.parametrize(
    ("host", "is_accepted"),
    [
        ("servicebus-container", True),
        ("host.docker.internal:5300", True),
        ("emulator.svc.cluster.local", True),
        ("rebound.example", False),
    ],
)
def test_names_of_containers_are_accepted_and_public_ones_are_not(host: str, is_accepted: bool) -> None:
    """A page whose public name was rebound to this machine would find the well-known key behind the port."""
    if is_accepted:
        check_request_source([host], None, frozenset(), accepts_local_names=True)
    else:
        with pytest.raises(ForeignRequest):
            check_request_source([host], None, frozenset(), accepts_local_names=True)
    with pytest.raises(ForeignRequest):
        check_request_source([host], None, frozenset())
