"""A program that sends for some seconds, during which it does not run, or its event loop is blocked.

    python -m tests.client.pausing HOW PATIENCE_S PRIMARY SECONDARY

HOW is `sync` or `aio`, which are stopped from without, or `blocked`, which blocks its own loop for ten seconds. It
prints `sending` when sends are under way, then the events of its client, then how many sends were accepted.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

from azure.servicebus import ServiceBusMessage

import pairbus
import pairbus.aio

PAUSE_S = 10.0
BESIDE_S = 1.0
"Time in which it sends, before and after the pause."
AT_ONCE = 20


async def send_in_tasks(client: Any, blocks: bool) -> int:
    count = 0
    async with client, client.get_queue_sender("orders") as sender:
        end = time.monotonic() + 2 * BESIDE_S + PAUSE_S
        block_at = time.monotonic() + BESIDE_S if blocks else end
        print("sending", flush=True)
        while time.monotonic() < end:
            sends = [asyncio.create_task(sender.send_messages(ServiceBusMessage("x"))) for _ in range(AT_ONCE)]
            await asyncio.sleep(0.01)
            if time.monotonic() > block_at:
                block_at = end
                time.sleep(PAUSE_S)  # noqa: ASYNC251 - that is the point
            await asyncio.gather(*sends)
            count += AT_ONCE
    return count


def send_in_threads(client: Any) -> int:
    counts: list[int] = []
    with client, client.get_queue_sender("orders") as sender:
        end = time.monotonic() + 2 * BESIDE_S + PAUSE_S

        def work() -> None:
            while time.monotonic() < end:
                sender.send_messages(ServiceBusMessage("x"))
                counts.append(1)

        threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        print("sending", flush=True)
        for thread in threads:
            thread.join()
    return len(counts)


def main(how: str, patience_s: str, primary: str, secondary: str) -> None:
    kind: Any = pairbus.PairedServiceBusClient if how == "sync" else pairbus.aio.PairedServiceBusClient
    client = kind.from_connection_strings(
        primary,
        secondary,
        primary_name="stage",
        create_backlog_queues=False,
        failover_interval=0,
        attempt_timeout=float(patience_s),
        connect_timeout=float(patience_s),
        on_event=lambda event: print(type(event).__name__, flush=True),
    )
    print(send_in_threads(client) if how == "sync" else asyncio.run(send_in_tasks(client, how == "blocked")))


if __name__ == "__main__":
    main(*sys.argv[1:])
