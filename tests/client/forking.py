"""A program that pairs, perhaps sends, and then forks workers that send with what they inherited.

    python -m tests.client.forking PRIMARY SECONDARY PRIMARY_NAME QUEUE fresh|used|away

Each process that is away prints a line, and waits until it is back. It ends with 0 when all went well.
"""

from __future__ import annotations

import os
import sys
import time
import traceback

from azure.servicebus import ServiceBusMessage

from pairbus import PairedServiceBusClient, State
from pairbus.client.sync import PairedSender

FORK_QUIETLY = ("-W", "ignore:This process:DeprecationWarning")
"Options of Python for a program that forks: from 3.12 on it warns of a fork of a process with threads."
WORKERS = 3
EACH = 5


def work(client: PairedServiceBusClient, sender: PairedSender, queue: str, who: str, is_away: bool) -> None:
    for number in range(EACH):
        sender.send_messages(ServiceBusMessage(who, message_id=f"{who}-{number}"), timeout=15)
    if not is_away:
        return
    assert client.states()[queue] is State.FAILED_OVER
    os.write(1, b"away\n")  # in one write, so that lines of several processes never mix
    deadline = time.monotonic() + 20
    while client.states()[queue] is not State.HEALTHY:
        assert time.monotonic() < deadline, f"{who} was never told that the primary is back"
        time.sleep(0.05)
    sender.send_messages(ServiceBusMessage(who, message_id=f"{who}-home"), timeout=15)


def main(primary: str, secondary: str, name: str, queue: str, how: str) -> int:
    client = PairedServiceBusClient.from_connection_strings(
        primary,
        secondary,
        primary_name=name,
        backlog_queue_count=2,
        failover_interval=0,
        ping_primary_interval=1,
        ping="message",  # the brokers are strict and do not say that they hide pings
    )
    client.pair()
    sender = client.get_queue_sender(queue)
    if how != "fresh":
        sender.send_messages(ServiceBusMessage("before", message_id="before"), timeout=15)
    if how == "away":
        time.sleep(1.1)  # the parent's first ping has begun, perhaps ended; workers must send pings of their own
    children = []
    for number in range(WORKERS):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work(client, sender, queue, f"child{number}", how == "away")
                client.close()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    work(client, sender, queue, "parent", how == "away")
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sender.send_messages(ServiceBusMessage("after", message_id="after"), timeout=15)
    client.close()
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
