"""A forked process and the asyncio client that it inherits, with a connection that was open."""

from __future__ import annotations

import asyncio
import sys

from tests.client.messages import id_of
from tests.client.world import Stage

PROGRAM = """
import asyncio, os, sys
from azure.servicebus import ServiceBusMessage
from pairbus.aio import PairedServiceBusClient

async def send(name):
    await sender.send_messages(ServiceBusMessage("x", message_id=name), timeout=10)

client = PairedServiceBusClient.from_connection_strings(*sys.argv[1:], create_backlog_queues=False)
sender = client.get_queue_sender("orders")
loop = asyncio.new_event_loop()
loop.run_until_complete(send("before"))
child = os.fork()
if child == 0:
    asyncio.run(send("child"))
    os._exit(0)
os.waitpid(child, 0)
loop.run_until_complete(send("after"))
loop.run_until_complete(client.close())
"""


async def test_a_child_says_nothing_on_the_connection_of_its_parent(stage: Stage) -> None:
    """The peer would hear two voices on one connection, and close it; and the child would wait for an answer that the
    parent gets."""
    ends = stage.primary.connection_string, stage.secondary.connection_string
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, *ends, stderr=asyncio.subprocess.PIPE)
    _, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0 and errors == b"", errors.decode()
    assert [id_of(payload) for payload in stage.primary.stored("orders")] == ["before", "child", "after"]
    assert [step.connection for step in stage.primary.steps if step.step == "transfer"] == [1, 2, 1]
