"""A worker of its own process, for tests of signals and kills.

Arguments: flavour, connection string, queue, milliseconds of a handler.
It prints `began ID` and `ended ID` for each handler, and `returned` when `run_forever` has returned.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

import pairbus
import pairbus.aio


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # in one piece: handlers print at the same time


async def work_in_loop(connection_string: str, queue: str, nap_s: float) -> None:
    async def handle(message: Any) -> None:
        say("began", str(message))
        await asyncio.sleep(nap_s)
        say("ended", str(message))

    client = pairbus.aio.ServiceBusClient.from_connection_string(connection_string)
    async with client, client.get_queue_processor(queue, handle, max_concurrent_calls=4) as processor:
        await processor.run_forever()
        say("returned", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)


def work_in_threads(connection_string: str, queue: str, nap_s: float) -> None:
    def handle(message: Any) -> None:
        say("began", str(message))
        time.sleep(nap_s)
        say("ended", str(message))

    client = pairbus.ServiceBusClient.from_connection_string(connection_string)
    with client, client.get_queue_processor(queue, handle, max_concurrent_calls=4) as processor:
        processor.run_forever()
        say("returned", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)


def main() -> None:
    flavour, connection_string, queue, nap_ms = sys.argv[1:]
    nap_s = int(nap_ms) / 1000
    if flavour == "aio":
        asyncio.run(work_in_loop(connection_string, queue, nap_s))
    else:
        work_in_threads(connection_string, queue, nap_s)


if __name__ == "__main__":
    main()
