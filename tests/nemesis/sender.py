"""A process that sends through a paired client until SIGTERM, and records each call before it goes on.

    python -m tests.nemesis.sender sync|aio ordered|free NAME SEED RATE LOG

The connection strings come from PAIRBUS_PRIMARY and PAIRBUS_SECONDARY. Records: `call` with the messages, then `ok`,
`failed` (surely not stored) or `unknown`, each with the ids; the witness of tests/nemesis/watch.py adds its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

import pairbus
import pairbus.aio
from pairbus.client.errors import PartlySent
from pairbus.errors import PairingError
from tests.history.record import REFUSALS
from tests.nemesis import broken
from tests.nemesis.log import Log
from tests.nemesis.making import make
from tests.nemesis.messages import Sent
from tests.nemesis.places import BACKLOG, ENTITIES, NEWS, PRIMARY, SESSION_SINKS
from tests.nemesis.watch import watch_sends

WORKERS = 3
BATCH_MAX = 6
OPTIONS: dict[str, dict[str, Any]] = {
    "sync": {"failover_interval": 0, "require_secondary": False},
    "aio": {"failover_interval": 1, "create_backlog_queues": False},
}


class Worker:
    """One thread or task: draws messages, and records their outcomes."""

    def __init__(self, name: str, seed: str, rate: float, log: Log) -> None:
        self._name = name
        self._source = random.Random(seed)
        self._rate = rate
        self._log = log
        self._count = 0

    def draw(self) -> tuple[list[Sent], list[ServiceBusMessage], str, float, float]:
        """Return messages of one call, their entity, its time-out, and the pause before the next one."""
        source = self._source
        entity = source.choice(ENTITIES)
        count = source.randint(2, BATCH_MAX) if source.random() < 0.2 else 1
        session = f"{self._name}-{source.randrange(3)}" if entity in SESSION_SINKS else ""
        made = []
        for _ in range(count):
            self._count += 1
            made.append(make(f"{self._name}-{self._count:05}", entity, session, source))
        sent = [one for one, _ in made]
        self._log.add(("call", time.monotonic(), [one.record() for one in sent]))
        pause_s = count * source.uniform(0.0, 2.0) / self._rate
        return sent, [message for _, message in made], entity, source.choice((3.0, 8.0, 15.0)), pause_s

    def ended(self, sent: list[Sent], error: BaseException | None) -> None:
        """Record the outcome of a call."""
        ids = [one.id for one in sent]
        if isinstance(error, PartlySent):
            self._log.add(("ok", error.stored_ids, ""))
            ids = error.unsent_ids
        self._log.add((outcome_of(error), ids, "" if error is None else f"{type(error).__name__}: {error}"[:300]))


def outcome_of(error: BaseException | None) -> str:
    """Say what an error tells about the message, by docs/errors.md."""
    if error is None:
        return "ok"
    if any("Unknown outcome" in note for note in getattr(error, "__notes__", ())):
        return "unknown"
    if isinstance(error, PairingError):
        return "unknown" if getattr(error, "outcome_unknown", False) else "failed"
    return "failed" if isinstance(error, REFUSALS) else "unknown"


def get_senders(client: Any) -> dict[str, Any]:
    return {
        entity: client.get_topic_sender(entity) if entity == NEWS else client.get_queue_sender(entity)
        for entity in ENTITIES
    }


def options_of(flavour: str, *, is_ordered: bool) -> dict[str, Any]:
    return {
        "backlog_queue_count": len(BACKLOG),
        "primary_name": PRIMARY,
        "ping_primary_interval": 1,
        "backlog_retry_interval": 2,
        "ordered": is_ordered,
        **OPTIONS[flavour],
    }


def one_or_all(messages: Sequence[ServiceBusMessage]) -> Any:
    return messages[0] if len(messages) == 1 else list(messages)


def run_sync(places: tuple[str, str], options: dict[str, Any], workers: list[Worker]) -> None:
    """Send in threads."""
    client = pairbus.PairedServiceBusClient.from_connection_strings(*places, **options)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def work(worker: Worker) -> None:
        senders = get_senders(client)
        while not stop.is_set():
            sent, messages, entity, timeout_s, pause_s = worker.draw()
            error: ServiceBusError | None = None
            try:
                senders[entity].send_messages(one_or_all(messages), timeout=timeout_s)
            except ServiceBusError as raised:
                error = raised
            worker.ended(sent, error)
            stop.wait(pause_s)

    with client:
        threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


async def run_aio(places: tuple[str, str], options: dict[str, Any], workers: list[Worker]) -> None:
    """Send in tasks."""
    client = pairbus.aio.PairedServiceBusClient.from_connection_strings(*places, **options)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def work(worker: Worker) -> None:
        senders = get_senders(client)
        while not stop.is_set():
            sent, messages, entity, timeout_s, pause_s = worker.draw()
            error: ServiceBusError | None = None
            try:
                await senders[entity].send_messages(one_or_all(messages), timeout=timeout_s)
            except ServiceBusError as raised:
                error = raised
            worker.ended(sent, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()

    async with client, asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(work(worker))


def main(flavour: str, order: str, name: str, seed: str, rate: str, file: str) -> None:
    logging.getLogger("pairbus").setLevel(logging.ERROR)  # warnings of an outage are no news here
    log = Log(Path(file))
    watch_sends(log)
    broken.plant(os.environ.get("NEMESIS_BUG", ""))
    places = os.environ["PAIRBUS_PRIMARY"], os.environ["PAIRBUS_SECONDARY"]
    workers = [Worker(f"{name}.{n}", f"{seed} {name} {n}", float(rate) / WORKERS, log) for n in range(WORKERS)]
    options = options_of(flavour, is_ordered=order == "ordered")
    log.add(("begin",))
    try:
        if flavour == "sync":
            run_sync(places, options, workers)
        else:
            asyncio.run(run_aio(places, options, workers))
    except PairingError as error:
        sys.exit(f"{type(error).__name__}: {error}")  # the storm keeps this client from pairing; it is started again


if __name__ == "__main__":
    main(*sys.argv[1:])
