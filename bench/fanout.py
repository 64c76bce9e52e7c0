"""Fan-out: one topic, many subscriptions, each with several SQL rules of which the last one matches."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter
from rich.table import Table

from bench.brokers import PairbusBroker
from bench.procstat import fine_cpu_seconds
from pairbus.amqp.message import Message, Properties
from pairbus.cli.admin.admin_client import administration
from pairbus.transport import ClientConnection, connect

TOPIC = "fan"
SUBSCRIPTIONS = 10
RULES = 10
BATCH = 100
STALL_S = 60.0
CPU_US_WANTED = 40.0


@dataclass(frozen=True)
class FanOut:
    """CPU of the broker for each copy that a subscription delivers."""

    cpu_us: float
    "CPU for sending, receiving and settling."
    send_us: float
    "Part of `cpu_us` until the copies are committed."


def measure_fanout(messages: int) -> FanOut:
    with PairbusBroker() as broker:
        with administration(broker.connection_string) as client:
            names = _make(client)
        return asyncio.run(_measure(broker, names, messages))


def _make(client: ServiceBusAdministrationClient) -> list[str]:
    client.create_topic(TOPIC, max_size_in_megabytes=5120)
    names = [f"sub{number}" for number in range(SUBSCRIPTIONS)]
    for name in names:
        client.create_subscription(TOPIC, name, lock_duration="PT5M")
        client.delete_rule(TOPIC, name, "$Default")
        for rule in range(RULES):
            text = f"color = 'red' AND amount > {rule}" if rule == RULES - 1 else f"color = 'blue' AND amount > {rule}"
            client.create_rule(TOPIC, name, f"rule{rule}", filter=SqlRuleFilter(text))
    return names


async def _measure(broker: PairbusBroker, names: list[str], messages: int) -> FanOut:
    async with await connect(broker.connection_string) as connection:
        await _pass(connection, names, BATCH)  # warms up
        copies = messages * len(names)
        before = fine_cpu_seconds(broker.pid)
        await _send(connection, messages)
        sent = fine_cpu_seconds(broker.pid)
        await _receive_all(connection, names, messages)
        after = fine_cpu_seconds(broker.pid)
    return FanOut((after - before) / copies * 1e6, (sent - before) / copies * 1e6)


async def _pass(connection: ClientConnection, names: list[str], messages: int) -> None:
    await _send(connection, messages)
    await _receive_all(connection, names, messages)


async def _send(connection: ClientConnection, messages: int) -> None:
    sender = await connection.sender(TOPIC)
    for at in range(0, messages, BATCH):
        await sender.send_batch([_message(at + n) for n in range(min(BATCH, messages - at))])
    await sender.close()


def _message(number: int) -> bytes:
    properties = Properties(message_id=f"m{number}")
    colour = {"color": "red", "amount": 100}
    return Message(properties=properties, application_properties=colour, data=[bytes(1000)]).encode()


async def _receive_all(connection: ClientConnection, names: list[str], messages: int) -> None:
    await asyncio.gather(*(_receive(connection, name, messages) for name in names))


async def _receive(connection: ClientConnection, name: str, left: int) -> None:
    receiver = await connection.receiver(f"{TOPIC}/Subscriptions/{name}", credit=2 * BATCH)
    while left:
        found = await receiver.receive(min(BATCH, left), STALL_S)
        if not found:
            raise TimeoutError(f"{name}: {left} messages did not come within {STALL_S:.0f} s")
        await receiver.complete(found)
        left -= len(found)
    await receiver.close()


def fanout_table(found: FanOut) -> Table:
    table = Table(f"fan-out to {SUBSCRIPTIONS} subscriptions with {RULES} SQL rules each", "µs CPU a copy", "wanted")
    table.add_row("sent, received and settled", f"{found.cpu_us:.1f}", f"≤ {CPU_US_WANTED:.0f}")
    table.add_row("of that, sent", f"{found.send_us:.1f}", "reported")
    return table
