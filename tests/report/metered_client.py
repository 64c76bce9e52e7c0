"""A paired client in a process of its own, with a ledger. It does what its standard input says, line by line.

    python -m tests.report.metered_client sync|aio PRIMARY SECONDARY LEDGER QUEUE…

    send TAG TIMEOUT_S      one call of each shape to every queue, each with more patience until it succeeds:
                            {"failed": messages}
    home                    wait until no queue is failed over
    syphon                  begin to bring home what is in the backlog
    receive QUEUE COUNT     one by one, each completed; then a call that brings nothing: [message ids]
    schedule QUEUE          two messages for tomorrow, and not at all
    close

Each line is answered by one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus import PairedServiceBusClient, State, aio
from tests.sdk.flavours import Flavour, Guarded, in_thread

KB = 1000
LARGE = (100 * KB, 70 * KB)  # two billed operations each
PATIENCE_S = 15.0
WAIT_S = 60.0


class Client:
    def __init__(self, flavour: Flavour, primary: str, secondary: str, ledger: str, *queues: str) -> None:
        self.flavour = flavour
        self.queues = queues
        self._strings = primary, secondary
        self._ledger = ledger
        self._all: list[Any] = []
        self._senders: dict[str, Guarded] = {}

    async def pair(self, *, syphon: bool = False) -> Any:
        kind: Any = aio.PairedServiceBusClient if self.flavour == "aio" else PairedServiceBusClient
        client = kind.from_connection_strings(
            *self._strings,
            primary_name="primary",
            backlog_queue_count=3,
            failover_interval=1,
            ping_primary_interval=1,
            enable_syphon=syphon,
            ledger=self._ledger,
        )
        await Guarded(client, self.flavour).pair()
        self._all.append(client)
        return client

    @property
    def raw(self) -> Any:
        return self._all[0]

    async def syphon(self) -> bool:
        """Only now: what a syphon receives while the primary is away stays locked for a minute."""
        await self.pair(syphon=True)
        return True

    async def send(self, tag: str, timeout_s: str) -> dict[str, int]:
        failed = 0
        for queue in self.queues:
            if queue not in self._senders:
                self._senders[queue] = Guarded(self.raw.get_queue_sender(queue), self.flavour)
            for messages in calls(f"{self.flavour}-{tag}-{queue}"):
                failed += await self._send(self._senders[queue], messages, float(timeout_s))
        return {"failed": failed}

    async def _send(self, sender: Guarded, messages: list[ServiceBusMessage], timeout_s: float) -> int:
        """Send; return the number of messages that failed, as callers count: each time anew."""
        given: Any = messages[0] if len(messages) == 1 else messages
        if len(messages) == 5:
            given = await sender.create_message_batch()
            for message in messages:
                given.add_message(message)
        failed = 0
        while True:
            try:
                await sender.send_messages(given, timeout=timeout_s)
            except ServiceBusError:
                failed += len(messages)
                timeout_s = PATIENCE_S
            else:
                return failed

    async def home(self) -> bool:
        while any(  # noqa: ASYNC110 - the awaited change happens in another thread
            state is not State.HEALTHY for state in self.raw.states().values()
        ):
            await asyncio.sleep(0.05)
        return True

    async def receive(self, queue: str, count: str) -> list[str]:
        receiver = Guarded(self.raw.get_queue_receiver(queue), self.flavour)
        ids = []
        for number in range(int(count)):
            [message] = await receiver.receive_messages(1, max_wait_time=10)
            ids.append(message.message_id)
            if number == 0:
                await receiver.renew_message_lock(message)
                await receiver.peek_messages(3)
            await receiver.complete_message(message)
        assert await receiver.receive_messages(1, max_wait_time=0.3) == []
        await receiver.close()
        return ids

    async def schedule(self, queue: str) -> bool:
        sender = Guarded(self.raw.get_queue_sender(queue), self.flavour)
        messages = [ServiceBusMessage(b"x" * size, message_id=str(size)) for size in (100, LARGE[0])]
        numbers = await sender.schedule_messages(messages, datetime.now(UTC) + timedelta(days=1))
        await sender.cancel_scheduled_messages(numbers)
        return len(numbers) == len(messages)

    async def close(self) -> bool:
        for client in self._all:
            await Guarded(client, self.flavour).close()
        return True


def calls(prefix: str) -> Iterator[list[ServiceBusMessage]]:
    """Singles, a list, a batch of five, one that is large, and one that is large among small ones."""
    shapes = [[100], [200], [LARGE[0]], [100] * 4, [50] * 5, [100, LARGE[1], 100]]
    number = 0
    for sizes in shapes:
        yield [ServiceBusMessage(b"x" * size, message_id=f"{prefix}-{number + at}") for at, size in enumerate(sizes)]
        number += len(sizes)


def ids_of(prefix: str) -> list[str]:
    return [str(message.message_id) for messages in calls(prefix) for message in messages]


async def main(flavour: str, *arguments: str) -> None:
    client = Client(cast(Flavour, flavour), *cast(Any, arguments))
    await client.pair()
    print(json.dumps("ready"), flush=True)
    while line := await in_thread(sys.stdin.readline):
        command, *words = line.split()
        async with asyncio.timeout(WAIT_S):
            print(json.dumps(await getattr(client, command)(*words)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
