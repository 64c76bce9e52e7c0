"""Program that uses all of Service Bus, for any version of the SDK from 7.0 on: `python program.py JSON`.

Runs in an environment that has azure-servicebus alone. The argument: {"connection": for messages, "administration": for
entities, "ca_file"}. Prints a line after each step; the first step that fails ends the program with its traceback.
"""

from __future__ import annotations

import datetime
import json
import sys
import uuid
from typing import Any

import certifi

GIVEN = json.loads(sys.argv[1])
CA_FILE = GIVEN["ca_file"]
certifi.where = lambda: CA_FILE  # versions before 7.8 have no option for it

import azure.servicebus as sdk  # noqa: E402
from azure.servicebus import ServiceBusClient, ServiceBusMessage  # noqa: E402
from azure.servicebus.management import ServiceBusAdministrationClient  # noqa: E402

NAMES: dict[str, Any] = vars(sdk)
SubQueue = NAMES.get("ServiceBusSubQueue") or NAMES["SubQueue"]  # the shorter names are those of 7.0
ReceiveMode = NAMES.get("ServiceBusReceiveMode") or NAMES["ReceiveMode"]
DELETING = vars(ReceiveMode).get("RECEIVE_AND_DELETE") or ReceiveMode.ReceiveAndDelete

WAIT_S = 20
LARGE = "x" * 200_000  # several frames


def passed(step: str) -> None:
    print(step, flush=True)


def texts(messages: list[Any]) -> list[str]:
    return [b"".join(message.body).decode() for message in messages]


def receive(receiver: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        more = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=WAIT_S)
        assert more, f"{len(found)} of {count} messages came"
        found += more
    return found


def administration(admin: Any, queue: str, with_sessions: str, topic: str) -> None:
    admin.create_queue(queue)
    admin.create_queue(with_sessions, requires_session=True)
    admin.create_topic(topic)
    admin.create_subscription(topic, "sub")
    assert admin.get_queue(with_sessions).requires_session is True
    properties = admin.get_queue(queue)
    properties.max_delivery_count = 7
    admin.update_queue(properties)
    assert admin.get_queue(queue).max_delivery_count == 7
    assert queue in [each.name for each in admin.list_queues()]
    assert [rule.name for rule in admin.list_rules(topic, "sub")] == ["$Default"]
    passed("administration")


def sends(client: Any, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("one"))
        sender.send_messages(ServiceBusMessage(LARGE))
        passed("send")
        batch = sender.create_message_batch()
        for text in ("two", "three"):
            batch.add_message(ServiceBusMessage(text))
        sender.send_messages(batch)
        passed("batch")


def receives(client: Any, queue: str) -> None:
    with client.get_queue_receiver(queue) as receiver:
        assert texts(receiver.peek_messages(max_message_count=9)) == ["one", LARGE, "two", "three"]
        one, large, two, three = receive(receiver, 4)
        assert texts([one, large, two, three]) == ["one", LARGE, "two", "three"]
        passed("receive")
        receiver.renew_message_lock(one)
        for message in (one, large):
            receiver.complete_message(message)
        passed("complete")
        receiver.abandon_message(two)
        [two] = receive(receiver, 1)
        assert two.delivery_count == 1, two.delivery_count
        receiver.defer_message(two)
        [two] = receiver.receive_deferred_messages([two.sequence_number])
        receiver.complete_message(two)
        passed("abandon and defer")
        receiver.dead_letter_message(three, reason="because", error_description="of this")
    with client.get_queue_receiver(queue, sub_queue=SubQueue("deadletter")) as receiver:
        [three] = receive(receiver, 1)
        reason = three.application_properties
        assert reason[b"DeadLetterReason"] in (b"because", "because"), reason
        receiver.complete_message(three)
        passed("dead letter")


def schedules(client: Any, queue: str) -> None:
    now = datetime.datetime.utcnow()
    with client.get_queue_sender(queue) as sender:
        late = sender.schedule_messages(ServiceBusMessage("late"), now + datetime.timedelta(hours=1))
        sender.cancel_scheduled_messages(late)
        sender.schedule_messages(ServiceBusMessage("soon"), now + datetime.timedelta(seconds=1))
    with client.get_queue_receiver(queue, receive_mode=DELETING) as receiver:
        assert texts(receive(receiver, 1)) == ["soon"]
        assert receiver.peek_messages() == []
    passed("schedule")


def sessions(client: Any, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage("mine", session_id="s1"), ServiceBusMessage("next", session_id="s2")])
    with client.get_queue_receiver(queue, session_id="s1") as receiver:
        [message] = receive(receiver, 1)
        assert texts([message]) == ["mine"]
        receiver.session.set_state("half")
        assert receiver.session.get_state() == b"half"
        receiver.session.renew_lock()
        receiver.complete_message(message)
    passed("session")


def topics(client: Any, topic: str) -> None:
    with client.get_topic_sender(topic) as sender:
        sender.send_messages(ServiceBusMessage("all"))
    with client.get_subscription_receiver(topic, "sub") as receiver:
        [message] = receive(receiver, 1)
        assert texts([message]) == ["all"]
        receiver.complete_message(message)
    passed("topic")


def main() -> None:
    names = [f"v-{uuid.uuid4().hex[:8]}" for _ in range(3)]
    queue, with_sessions, topic = names
    trust = {"connection_verify": CA_FILE}
    admin = ServiceBusAdministrationClient.from_connection_string(GIVEN["administration"], **trust)
    administration(admin, queue, with_sessions, topic)
    client = ServiceBusClient.from_connection_string(GIVEN["connection"], **trust)
    with client:
        sends(client, queue)
        receives(client, queue)
        schedules(client, queue)
        sessions(client, with_sessions)
        topics(client, topic)
    for name in (queue, with_sessions):
        admin.delete_queue(name)
    admin.delete_topic(topic)
    passed("deleted")


main()
