"""Record what the genuine SDK says on the wire: `python -m tests.amqp.record` rewrites the files of tests/corpus/amqp.

The other end is the core with an obliging user: every token is good, every message is accepted, every receiver is sent
messages, settlements are answered, and links to `refused` are refused.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import (
    AmqpEvent,
    ConnectionOpened,
    Delivery,
    Disposed,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionBegun,
)
from pairbus.amqp.link import SenderLink, address_of
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import ACCEPTED_BYTES, Error, Rejected
from pairbus.amqp.sasl import SaslServer
from pairbus.amqp.types import Int
from tests.amqp.pair import answer_as_server

CORPUS = Path(__file__).parent.parent / "corpus" / "amqp"
MESSAGE = Message(properties=Properties(message_id="m"), data=[b"body"]).encode()


class ObligingUser:
    """A server that answers every event of the core with the obliging reply."""

    def __init__(self) -> None:
        self._sent = 0

    def answer(self, connection: Connection, event: AmqpEvent) -> None:
        if isinstance(event, LinkAttached):
            if "refused" in (address_of(event.attach.target) or ""):
                event.link.refuse(Error("amqp:not-found", "The messaging entity 'refused' could not be found."))
            else:
                answer_as_server(connection, event)
        elif isinstance(event, Delivery):
            self._on_delivery(event)
        elif isinstance(event, LinkFlow):
            self._on_flow(event.link)
        elif isinstance(event, Disposed):
            for delivery in event.deliveries:
                if not event.settled:
                    rejected = isinstance(event.state, Rejected)
                    state = Rejected().encode() if rejected else event.state.encode()
                    event.session.settle_sent(delivery.delivery_id, delivery.delivery_id, state)
        elif isinstance(event, ConnectionOpened | SessionBegun | LinkDetached):
            answer_as_server(connection, event)

    def _on_delivery(self, event: Delivery) -> None:
        link = event.link
        if not event.settled:
            link.settle(event.delivery_id, event.delivery_id, ACCEPTED_BYTES, 1)
        if link.remote_attach is None or address_of(link.remote_attach.target) != "$cbs":
            return
        request = Message.decode(event.payload)
        asked = request.properties.message_id if request.properties is not None else None
        response = Message(
            properties=Properties(correlation_id=asked),
            application_properties={"status-code": Int(202), "status-description": "Accepted"},
            has_value=True,
        )
        for answering in link.session.links:
            if isinstance(answering, SenderLink) and answering.sendable:
                answering.send(response.encode(), b"answer", settled=True)
                return

    def _on_flow(self, link: SenderLink) -> None:
        if link.remote_attach is None or address_of(link.remote_attach.source) == "$cbs":
            return
        while link.sendable and self._sent < 5:
            self._sent += 1
            link.send(MESSAGE, self._sent.to_bytes(16, "big"))
        if link.drain:
            link.drained()


class Recorder:
    """A server on a loopback port that keeps the bytes of the first connection, both ways."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.said = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        wire, _ = self._listener.accept()
        connection, user = Connection(ConnectionSettings("recorder"), SaslServer()), ObligingUser()
        # The SDK hangs up right behind its close, without waiting for ours.
        with wire, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while data := wire.recv(65536):
                self.heard += data
                for event in connection.receive_data(data, 0.0):
                    user.answer(connection, event)
                if connection.has_output:
                    self.said += (output := connection.data_to_send())
                    wire.sendall(output)

    def stop(self) -> None:
        self._thread.join(5)
        self._listener.close()


def send(client: ServiceBusClient) -> None:
    with client.get_queue_sender("q1") as sender:
        sender.send_messages(ServiceBusMessage("hello", application_properties={"n": 1, "t": "x", "b": True}))
        sender.send_messages([ServiceBusMessage("a", session_id="s"), ServiceBusMessage("b", session_id="s")])
        sender.send_messages(ServiceBusMessage(b"z" * 70_000))


def receive(client: ServiceBusClient) -> None:
    with client.get_queue_receiver("q1", prefetch_count=2) as receiver:
        settle: list[Callable[[ServiceBusReceiver, Any], None]] = [
            lambda r, m: r.complete_message(m),
            lambda r, m: r.abandon_message(m),
            lambda r, m: r.defer_message(m),
            lambda r, m: r.dead_letter_message(m, reason="bad", error_description="very"),
        ]
        for step in settle:
            for message in receiver.receive_messages(1, max_wait_time=2):
                step(receiver, message)


def refused(client: ServiceBusClient) -> None:
    try:
        with client.get_queue_sender("refused") as sender:
            sender.send_messages(ServiceBusMessage("x"))
    except ServiceBusError:
        return
    raise AssertionError("a refused link took a message")


JS = """
import { ServiceBusClient } from "@azure/service-bus";
const client = new ServiceBusClient(process.argv[1]);
const sender = client.createSender("q1");
await sender.sendMessages({ body: "hello", applicationProperties: { n: 1 } });
await sender.sendMessages([{ body: "a", messageId: "m1" }, { body: "b", messageId: "m2" }]);
await sender.sendMessages({ body: Buffer.alloc(70000, 122) });
const receiver = client.createReceiver("q1");
for (const message of await receiver.receiveMessages(3, { maxWaitTimeInMs: 1000 })) {
  await receiver.completeMessage(message);
}
await client.close();
"""


def in_javascript(connection_string: str) -> None:
    """The modules are those of the SDK tests."""
    folder = Path(__file__).parent.parent / "sdk" / "js"
    subprocess.run(["node", "--input-type=module", "-e", JS, connection_string], cwd=folder, check=True, timeout=60)


def in_python(act: Callable[[ServiceBusClient], None]) -> Callable[[str], None]:
    def run(connection_string: str) -> None:
        with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client:
            act(client)

    return run


def record(name: str, act: Callable[[str], None]) -> None:
    recorder = Recorder()
    key = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
    act(f"Endpoint=sb://127.0.0.1:{recorder.port};{key}")
    recorder.stop()
    CORPUS.mkdir(parents=True, exist_ok=True)
    (CORPUS / f"{name}.client").write_bytes(recorder.heard)
    (CORPUS / f"{name}.server").write_bytes(recorder.said)
    print(f"{name}: {len(recorder.heard)} bytes heard, {len(recorder.said)} said")


if __name__ == "__main__":
    record("python-send", in_python(send))
    record("python-receive", in_python(receive))
    record("python-refused", in_python(refused))
    record("javascript", in_javascript)
