"""A hung call of the sync SDK is freed by breaking its socket, in whatever phase it hangs."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender, TransportType
from azure.servicebus.exceptions import ServiceBusError

from pairbus.pairing.policy import Failure, Kind
from pairbus.sdk.failures import failure_of
from pairbus.sdk.sockets import break_socket
from tests.brokers import BrokerProcess
from tests.sdk_edge.conftest import Strings

FAST: dict[str, Any] = {"retry_total": 0, "keep_alive": 0}
FREED_S = 20.0  # a call that is not freed lasts longer


class Hung:
    """A send in a thread of its own, and how it ended."""

    def __init__(self, sender: ServiceBusSender) -> None:
        self.sender = sender
        self.failure: Failure | None = None
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        try:
            self.sender.send_messages(ServiceBusMessage("x"), timeout=60)
        except ServiceBusError as error:
            self.failure = failure_of(error)

    def break_off(self) -> Failure:
        """Breaks until there was something to break, as a watchdog would; the call must end at once."""
        deadline = time.monotonic() + FREED_S
        while not break_socket(self.sender):
            assert self._thread.is_alive() and time.monotonic() < deadline, "there was nothing to break"
            time.sleep(0.01)
        self._thread.join(FREED_S)
        assert not self._thread.is_alive(), "the call still hangs"
        assert self.failure is not None
        return self.failure


def accepted(server: socket.socket) -> socket.socket:
    server.settimeout(5)
    peer, _ = server.accept()
    peer.settimeout(5)
    return peer


def test_a_call_that_waits_for_sasl_is_freed(strings: Strings) -> None:
    """The SDK has no time-out here, and its close() from another thread does not help."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        ServiceBusClient.from_connection_string(strings.at(server.getsockname()[1]), **FAST) as client,
    ):
        hung = Hung(client.get_queue_sender("q"))
        with accepted(server) as peer:
            assert peer.recv(8).startswith(b"AMQP\x03")
            failure = hung.break_off()
    assert failure.kind is Kind.COMMUNICATION


def test_a_call_that_waits_for_the_tls_handshake_is_freed(strings: Strings) -> None:
    """While TLS is negotiated the SDK has no attribute that holds the socket; the stack of the thread has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = ServiceBusClient.from_connection_string(
            strings.as_azure,
            custom_endpoint_address=f"sb://127.0.0.1:{server.getsockname()[1]}",
            transport_type=TransportType.Amqp,
            **FAST,
        )
        with client:
            hung = Hung(client.get_queue_sender("q"))
            with accepted(server) as peer:
                assert peer.recv(1) == b"\x16"
                failure = hung.break_off()
    assert failure.kind is Kind.COMMUNICATION


def test_a_call_that_waits_for_the_web_socket_is_freed(strings: Strings) -> None:
    """The web socket library holds the socket until the upgrade is answered."""
    pytest.importorskip("websocket")
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"sb://127.0.0.1:{server.getsockname()[1]}"
        options = {**FAST, "socket_timeout": 60}
        client = ServiceBusClient.from_connection_string(strings.here, custom_endpoint_address=where, **options)
        with client:
            hung = Hung(client.get_queue_sender("q"))
            with accepted(server) as peer:
                assert peer.recv(4) == b"GET "
                failure = hung.break_off()
    assert failure.kind is Kind.COMMUNICATION


@pytest.mark.slow
def test_a_call_that_waits_for_the_answer_to_its_message_is_freed(tmp_path: Path) -> None:
    """The broker stands still."""
    with BrokerProcess(tmp_path / "data", namespaces=["contoso"], strict=True) as own:
        with own.admin() as admin:
            admin.create_queue("q")
        with ServiceBusClient.from_connection_string(own.connection_string(), **FAST) as client:
            sender = client.get_queue_sender("q")
            sender.send_messages(ServiceBusMessage("before"))
            os.kill(own.pid, signal.SIGSTOP)
            hung = Hung(sender)
            failure = hung.break_off()
            os.kill(own.pid, signal.SIGCONT)
    assert failure.kind in (Kind.COMMUNICATION, Kind.TIMEOUT)


def test_without_a_socket_there_is_nothing_to_break(strings: Strings) -> None:
    """A watchdog asks again; the SDK connects within a second for each address, or fails."""
    with ServiceBusClient.from_connection_string(strings.here, **FAST) as client:
        sender = client.get_queue_sender("q")
        assert not break_socket(sender)
    assert not break_socket(sender) and not break_socket(object())


def test_only_the_socket_of_that_sender_is_broken(strings: Strings, queue_name: str) -> None:
    """Every sender has a connection of its own."""
    with ServiceBusClient.from_connection_string(strings.here, **FAST) as client:
        one, other = client.get_queue_sender(queue_name), client.get_queue_sender(queue_name)
        for sender in (one, other):
            sender.send_messages(ServiceBusMessage("x"), timeout=5)
        assert break_socket(one)
        other.send_messages(ServiceBusMessage("x"), timeout=5)
        with pytest.raises(ServiceBusError):
            one.send_messages(ServiceBusMessage("x"), timeout=5)
