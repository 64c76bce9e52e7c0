"""`pairbus demo --serve`: a pair of brokers with applications that send and receive, and the page to watch them."""

from __future__ import annotations

import asyncio
import itertools
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.aio import PairedServiceBusClient
from pairbus.cli.demo import pair as demo_pair
from pairbus.cli.demo.pair import ORDERS, PAYMENTS, PRIMARY, ROUTES, SECONDARY, DemoEntity
from pairbus.cli.loop import stop_event
from pairbus.cli.serve.dashboard import address_lines
from pairbus.cli.serve.dashboard_page import Given, PageOptions, make_page
from pairbus.client.sides import Side
from pairbus.dashboard.server import DashboardServer

CLIENT = {"failover_interval": 5.0, "ping_primary_interval": 2.0, "control_socket": True}
SEND_EVERY_S = 0.2
CONSUMER = "shop"
"Application that receives, and whose client runs the syphon."
RECEIVED = (ORDERS, PAYMENTS)
"Queues whose messages are received; those of the others stay, to be looked at."


async def serve(port: int, say: Callable[[str], object]) -> None:
    """Run everything until Ctrl-C, or until an application fails; nothing is left behind.

    SIGTERM before the page is there cancels the start, so that the brokers which run already are stopped.
    """
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with tempfile.TemporaryDirectory(prefix="pairbus-demo-") as name:
        folder = Path(name)
        async with (
            demo_pair.running_pair(folder, meter=True) as pair,
            pair.clients(lambda name: {**CLIENT, "enable_syphon": name == CONSUMER}) as clients,
        ):
            namespaces = [Given(Side.from_connection_string(text), text) for text in pair.connection_strings]
            controls = (folder / PRIMARY, folder / SECONDARY)
            options = PageOptions(
                namespaces, primary_name=PRIMARY, rotation=demo_pair.BACKLOG_QUEUES, controls=controls
            )
            page, token = await make_page(options)
            async with DashboardServer(page, "127.0.0.1", port) as server, asyncio.TaskGroup() as group:
                stopped = stop_event()  # before the address is printed: from then on a signal is a clean end
                primary, secondary = pair.connection_strings
                for line in (f"{PRIMARY} {primary}", f"{SECONDARY} {secondary}", *address_lines(server.url, token)):
                    say(line)
                works = [
                    *(_send(clients[application], application, entity) for application, entity in ROUTES),
                    *(_receive(clients[CONSUMER], entity.name) for entity in RECEIVED),
                ]
                tasks = [group.create_task(work) for work in works]
                await stopped.wait()
                for task in tasks:
                    task.cancel()


async def _send(client: PairedServiceBusClient, application: str, entity: DemoEntity) -> None:
    async with entity.sender(client) as sender:
        for number in itertools.count():
            body = f'{{"application": "{application}", "number": {number}, "amount": {number * 7 % 100}}}'
            session = f"customer-{number % 5}" if entity.has_sessions else None
            message = ServiceBusMessage(body, message_id=f"{application}-{entity.name}-{number}", session_id=session)
            await demo_pair.send(sender, message, lambda refusal: None)
            await asyncio.sleep(SEND_EVERY_S)


async def _receive(client: PairedServiceBusClient, queue: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    # The SDK swallows a cancellation while it reads a socket, and takes it for an empty read.
    while not task.cancelling():
        try:
            async with client.get_queue_receiver(queue) as receiver:
                while not task.cancelling():
                    for message in await receiver.receive_messages(20, max_wait_time=1):
                        await receiver.complete_message(message)
        except (ServiceBusError, OSError):  # the primary is away: receivers wait, as they do without a pair
            await asyncio.sleep(1.0)
