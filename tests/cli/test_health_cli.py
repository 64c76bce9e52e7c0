"""`pairbus health`: exit code 0 only while a broker can store messages."""

from __future__ import annotations

import http.server
import socketserver
import threading
from collections.abc import Iterator

import pytest

from pairbus.cli.serve.health import configured
from tests.brokers import BrokerProcess
from tests.cli.command import Command


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def web_server() -> Iterator[int]:
    """A web server that is no broker; the fixture is its port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_running_broker_is_healthy(broker: BrokerProcess, command: Command) -> None:
    """The words are the broker's own, so that a log of checks says more than a number."""
    outcome = command("health", f"127.0.0.1:{broker.ports['contoso']}")
    assert (outcome.code, outcome.out, outcome.err) == (0, "Service is healthy.\n", "")


def test_port_without_listener_is_unhealthy(command: Command, unused_tcp_port: int) -> None:
    """A container whose broker is gone must be restarted: the check fails, and says why."""
    outcome = command("health", f"127.0.0.1:{unused_tcp_port}")
    assert outcome.code == 1
    assert outcome.err.startswith(f"pairbus: 127.0.0.1:{unused_tcp_port}: no answer: ")


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_name_that_no_resolver_takes_is_no_such_host(command: Command, host: str) -> None:
    """Such a name raises UnicodeError deep in the standard library, which was once shown as a traceback."""
    outcome = command("health", host)
    assert outcome.code == 2
    assert "no such host" in outcome.err


def test_other_web_server_is_unhealthy(command: Command, web_server: int) -> None:
    """A wrong port must not pass for a broker only because somebody answers there."""
    outcome = command("health", f"127.0.0.1:{web_server}")
    assert outcome.code == 1
    assert "not the port of a broker" in outcome.err


@pytest.fixture
def other_service() -> Iterator[int]:
    """A server that greets its clients as SSH does; the fixture is its port."""

    class Greeting(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            self.rfile.readline()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_port_of_another_service_is_told_in_one_line(command: Command, other_service: int) -> None:
    """A health check is read in the log of a container: a wrong port is a mistake of the user, not a bug."""
    outcome = command("health", f"127.0.0.1:{other_service}")
    said = "this is not the port of a broker: it did not answer in HTTP"
    assert (outcome.code, outcome.err) == (1, f"pairbus: 127.0.0.1:{other_service}: {said}\n")


def test_every_namespace_of_the_environment_is_asked(
    broker: BrokerProcess, command: Command, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image and the broker in it read one variable: a check of a port that is not configured would always fail."""
    namespaces = " ".join(f"{name}={port}" for name, port in broker.ports.items())
    monkeypatch.setenv("PAIRBUS_HOST", "0.0.0.0")
    monkeypatch.setenv("PAIRBUS_NAMESPACES", namespaces)
    outcome = command("health", "--timeout", "5s")
    assert (outcome.code, outcome.out, outcome.err) == (0, "Service is healthy.\n", "")

    monkeypatch.setenv("PAIRBUS_NAMESPACES", f"{namespaces} gone={unused_tcp_port}")
    outcome = command("health")
    assert outcome.code == 1
    assert outcome.err.startswith(f"pairbus: 127.0.0.1:{unused_tcp_port}: no answer: ")


@pytest.mark.parametrize(
    ("variables", "addresses"),
    [
        ({}, ["127.0.0.1:5672"]),
        ({"PAIRBUS_HOST": "192.0.2.1"}, ["192.0.2.1:5672"]),
        ({"PAIRBUS_HOST": "::", "PAIRBUS_NAMESPACES": "a=1 b=2"}, ["[::1]:1", "[::1]:2"]),
    ],
)
def test_addresses_are_those_of_the_broker(variables: dict[str, str], addresses: list[str]) -> None:
    """A broker that listens on all addresses is asked on the loopback."""
    assert configured(variables) == addresses


@pytest.mark.parametrize("text", ["local", "local=0", "local=70000"])
def test_namespace_without_a_fixed_port_is_wrong_usage(
    command: Command, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Port 0 means any free port, which the check cannot know."""
    monkeypatch.setenv("PAIRBUS_NAMESPACES", text)
    outcome = command("health")
    assert outcome.code == 2
    assert "NAME=PORT" in outcome.err


def test_address_that_is_none_is_wrong_usage(command: Command) -> None:
    """Exit code 2 tells a typing mistake from a sick broker."""
    outcome = command("health", "http://")
    assert outcome.code == 2
    assert "HOST[:PORT]" in outcome.err
