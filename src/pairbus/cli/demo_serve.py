"""`pairbus demo --serve`: a pair of brokers with applications that send and receive, and the page to watch them."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.cli import demo_pair
from pairbus.cli.dashboard import address_lines, until_stopped
from pairbus.cli.dashboard_page import Given, PageOptions, make_page
from pairbus.cli.demo_pair import APPLICATIONS, BACKLOG_QUEUES, ENTITIES, PRIMARY, SECONDARY
from pairbus.client.sides import Side
from pairbus.dashboard.server import DashboardServer

if TYPE_CHECKING:
    from pairbus.aio import PairedServiceBusClient

FAILOVER_INTERVAL_S = 5.0
PING_INTERVAL_S = 2.0
SEND_EVERY_S = 0.2
RECEIVED = ("orders", "payments")
"Queues whose messages an application receives; those of the others stay, to be looked at."


async def serve(port: int, say: Callable[[str], object]) -> None:
    """Run everything until Ctrl-C; nothing is left behind."""
    with tempfile.TemporaryDirectory(prefix="pairbus-demo-") as name:
        folder = Path(name)
        async with AsyncExitStack() as ends:
            brokers = await demo_pair.start_pair(ends, folder, meter=True)
            home, away = brokers[0].connection_strings[PRIMARY], brokers[1].connection_strings[SECONDARY]
            applications = await _applications(ends, home, away)
            given = [Given(Side.from_connection_string(text), text) for text in (home, away)]
            controls = (folder / PRIMARY, folder / SECONDARY)
            options = PageOptions(given, primary_name=PRIMARY, rotation=BACKLOG_QUEUES, controls=controls)
            page, token = await make_page(options)
            server = await ends.enter_async_context(DashboardServer(page, "127.0.0.1", port))
            for line in (f"{PRIMARY} {home}", f"{SECONDARY} {away}", *address_lines(server.url, token)):
                say(line)
            await _until_stopped(applications)


async def _applications(ends: AsyncExitStack, home: str, away: str) -> list[asyncio.Task[None]]:
    tasks = []
    for number, (application, entities) in enumerate(APPLICATIONS.items()):
        client = await demo_pair.new_client(
            ends,
            home,
            away,
            failover_interval=FAILOVER_INTERVAL_S,
            ping_primary_interval=PING_INTERVAL_S,
            enable_syphon=number == 0,
            control_socket=True,
        )
        tasks += [asyncio.create_task(_send(client, application, entity)) for entity in entities]
        if number == 0:
            tasks += [asyncio.create_task(_receive(client, entity)) for entity in RECEIVED]
    return tasks


async def _until_stopped(applications: list[asyncio.Task[None]]) -> None:
    """Wait for Ctrl-C; an application that fails ends everything with its error."""
    stopped = asyncio.create_task(until_stopped())
    try:
        done, _ = await asyncio.wait((stopped, *applications), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (stopped, *applications):
            task.cancel()
        await asyncio.gather(stopped, *applications, return_exceptions=True)


async def _send(client: PairedServiceBusClient, application: str, entity: str) -> None:
    async with ENTITIES[entity].sender(client) as sender:
        for number in itertools.count():
            body = f'{{"application": "{application}", "number": {number}, "amount": {number * 7 % 100}}}'
            session = f"customer-{number % 5}" if ENTITIES[entity].has_sessions else None
            message = ServiceBusMessage(body, message_id=f"{application}-{entity}-{number}", session_id=session)
            is_sent = False
            while not is_sent:
                is_sent = await demo_pair.refusal_of(sender, message) is None
                await asyncio.sleep(SEND_EVERY_S)


async def _receive(client: PairedServiceBusClient, entity: str) -> None:
    while True:
        try:
            async with client.get_queue_receiver(entity) as receiver:
                while True:
                    for message in await receiver.receive_messages(20, max_wait_time=1):
                        await receiver.complete_message(message)
                    demo_pair.heed_cancellation()
        except (ServiceBusError, OSError):  # the primary is away: receivers wait, as they do without a pair
            demo_pair.heed_cancellation()
            await asyncio.sleep(1.0)
