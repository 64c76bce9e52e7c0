"""A forked process and the asyncio client that it inherits, with a connection that was open."""

from __future__ import annotations

import asyncio
import sys

from tests.client.forking import FORK_QUIETLY
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
    process = await asyncio.create_subprocess_exec(
        sys.executable, *FORK_QUIETLY, "-c", PROGRAM, *ends, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0 and errors == b"", errors.decode()
    assert [id_of(payload) for payload in stage.primary.stored("orders")] == ["before", "child", "after"]
    assert [step.connection for step in stage.primary.steps if step.step == "transfer"] == [1, 2, 1]


IN_TRAFFIC = """
import asyncio, os, sys
from azure.servicebus import ServiceBusMessage
from pairbus.aio import PairedServiceBusClient

client = PairedServiceBusClient.from_connection_strings(*sys.argv[1:], create_backlog_queues=False)
sender = client.get_queue_sender("orders")

async def send(name, count):
    for number in range(count):
        await sender.send_messages(ServiceBusMessage("x", message_id=f"{name}-{number}"), timeout=10)

async def many(name):
    await asyncio.gather(*(send(f"{name}-{task}", 10) for task in range(5)))
    await client.close()

async def main():
    over = asyncio.Event()

    async def keep_sending(task):
        number = 0
        while not over.is_set():
            await sender.send_messages(ServiceBusMessage("x", message_id=f"parent-{task}-{number}"), timeout=10)
            number += 1

    tasks = [asyncio.create_task(keep_sending(task)) for task in range(20)]
    children = []
    for number in range(3):
        await asyncio.sleep(0.2)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert client._life.engine is None, "the engine is built at the first call"
                asyncio.run(many(f"child{number}"))
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, child, 0))[1]) for child in children]
    over.set()
    await asyncio.gather(*tasks)
    await client.close()
    print(codes)

asyncio.run(main())
"""


async def test_children_forked_during_traffic_send_in_their_own_loops(stage: Stage) -> None:
    """Twenty tasks have sends in flight at each fork; a child touches neither the loop nor the socket."""
    ends = stage.primary.connection_string, stage.secondary.connection_string
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *FORK_QUIETLY,
        "-c",
        IN_TRAFFIC,
        *ends,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (said.decode().strip(), errors.decode(), process.returncode) == ("[0, 0, 0]", "", 0)
    ids = [id_of(payload) for payload in stage.primary.stored("orders")]
    assert len(ids) == len(set(ids)), "nothing was sent twice"
    assert sum(one.startswith("child") for one in ids) == 150
    assert stage.secondary.received == []
