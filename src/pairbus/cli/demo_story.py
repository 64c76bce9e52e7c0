"""The story that `pairbus demo` tells: sending, outage, diverted, backlog, recovered, moved, checked.

The messages are numbered and in three parts. The primary is killed while the first part is being sent; the second part
is sent while it is dead; the third part waits until it is back. So every run has all steps, however fast the machine.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.cli.child_broker import ChildBroker
from pairbus.cli.demo_book import Book, Verdict
from pairbus.cli.demo_drain import Drain, Way, ledger_of
from pairbus.cli.demo_entities import ENTITIES, IN_WORDS, create, empty, heed_cancellation
from pairbus.cli.report import write_page
from pairbus.errors import PairbusError
from pairbus.ledger import read
from pairbus.pairing.backlog import queue_index
from pairbus.pairing.events import Diverted, Event, PingSent
from pairbus.pairing.failover import HEALTHY

if TYPE_CHECKING:
    from azure.servicebus.management import QueueRuntimeProperties

    from pairbus.aio import PairedServiceBusClient

PRIMARY, SECONDARY = "contoso", "fabrikam"
APPLICATIONS = {
    "shop": ("orders", "payments"),
    "warehouse": ("orders", "shipments"),
    "finance": ("payments", "invoices"),
}
ROUTES = [(application, entity) for application, entities in APPLICATIONS.items() for entity in entities]
BACKLOG_QUEUES = 4
FAILOVER_INTERVAL_S = 1.0
PING_INTERVAL_S = 1.0
SEND_TIMEOUT_S = 10.0
RETRY_PAUSE_S = 0.2
LOOK_S = 0.05
PATIENCE_S = 60.0  # for a step that takes a second or two on an idle machine

Say = Callable[[str, str], None]
"Function that prints a step: its word, and the rest of the line."
NewDrain = Callable[[Path], Drain]
"Function that makes the drain, which may use the folder."


class Story:
    """A run of the demo."""

    def __init__(self, messages: int, seed: int, new_drain: NewDrain, say: Say, page: Path) -> None:
        self._messages = messages
        self._seed = seed
        self._new_drain = new_drain
        self._say = say
        self._page = page
        self._book = Book(seed, ENTITIES)
        self._outage_from = messages * 2 // 5
        "Number of the first message that is sent when the primary is dead."
        self._outage_to = messages * 4 // 5
        "Number of the first message that is sent when the primary is back."
        kill_range = (max(1, self._outage_from // 2), max(1, self._outage_from * 9 // 10))
        self._kill_at = random.Random(seed).randint(*kill_range)
        "Number of accepted messages at which the primary is killed."
        self._killed_s = 0.0
        self._kill_now, self._outage, self._back = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._under_way = 0
        self._refused = 0
        self._diverted = 0
        self._diverted_since_s: dict[tuple[str, str], float] = {}
        "Application and entity → time at which the secondary took the first message."
        self._pings: Counter[bool] = Counter()

    async def tell(self) -> Verdict:
        with tempfile.TemporaryDirectory(prefix="pairbus-demo-") as name:
            folder = Path(name)
            async with self._new_drain(folder) as drain:
                moved, failover_s, drain_s = await self._play(folder, drain)
                # All clients are closed: the ledger is complete. The drain's Spark, if it has one, still runs.
                if drain.spark is not None:
                    await asyncio.to_thread(write_page, drain.spark, ledger_of(folder), self._page)
                    self._say("report", f"what it did and what it cost is in {self._page}")
                return self._book.verdict(
                    diverted=self._diverted,
                    moved=moved,
                    failover_s=failover_s,
                    drain_s=drain_s,
                    ledger=read(ledger_of(folder)),
                    report=None if drain.spark is None else str(self._page),
                )

    async def _play(self, folder: Path, drain: Drain) -> tuple[int, float, float]:
        """Run all steps; returns how many messages the syphon moved, and how long failover and drain took."""
        async with AsyncExitStack() as ends:
            home, away = await self._start(ends, folder)
            clients = await self._pair(ends, home, away, folder)
            try:
                async with asyncio.TaskGroup() as group:
                    for index, (application, entity) in enumerate(ROUTES):
                        numbers = range(index, self._messages, len(ROUTES))
                        group.create_task(self._send(clients[application], application, entity, numbers))
                    failover_s = await self._lose(home)
                    await self._recover(home, away, clients)
            except* PairbusError as errors:
                raise errors.exceptions[0] from errors  # the user gets the first error
            moved, drain_s = await self._move_home(home, away, drain)
            await self._check(clients["finance"], home)
        return moved, failover_s, drain_s

    async def _start(self, ends: AsyncExitStack, folder: Path) -> tuple[ChildBroker, ChildBroker]:
        """Start the namespaces in two processes, so that one can be killed."""
        brokers = [ChildBroker([name], folder / name, folder / f"{name}.stderr") for name in (PRIMARY, SECONDARY)]
        for broker in brokers:
            ends.push_async_callback(broker.stop)
        await asyncio.gather(*(broker.start() for broker in brokers))
        await asyncio.to_thread(create, _home_of(brokers[0]))
        return brokers[0], brokers[1]

    async def _pair(
        self, ends: AsyncExitStack, home: ChildBroker, away: ChildBroker, folder: Path
    ) -> dict[str, PairedServiceBusClient]:
        from pairbus.aio import PairedServiceBusClient

        clients = {}
        for application in APPLICATIONS:
            client = PairedServiceBusClient.from_connection_strings(
                _home_of(home),
                _away_of(away),
                primary_name=PRIMARY,
                backlog_queue_count=BACKLOG_QUEUES,
                failover_interval=FAILOVER_INTERVAL_S,
                ping_primary_interval=PING_INTERVAL_S,
                ledger=ledger_of(folder),
                on_event=partial(self._heard, application),
            )
            clients[application] = await ends.enter_async_context(client)
        self._say("paired", f"{PRIMARY} (process {home.pid}) with {SECONDARY} (process {away.pid})")
        return clients

    def _heard(self, application: str, event: Event) -> None:
        if isinstance(event, Diverted):
            self._diverted += event.count
            self._diverted_since_s.setdefault((application, event.path), time.monotonic())
        elif isinstance(event, PingSent):
            self._pings[event.accepted] += 1

    # ── sending ──

    async def _send(self, client: PairedServiceBusClient, application: str, entity: str, numbers: range) -> None:
        async with ENTITIES[entity].sender(client) as sender:
            for number in numbers:
                if number >= self._outage_from:
                    await self._outage.wait()
                if number >= self._outage_to:
                    await self._back.wait()
                message = self._book.new_message(entity, application, number)
                await self._send_one(sender, message)
                self._book.accepted(entity, message)
                heed_cancellation()
                if self._book.accepted_count >= self._kill_at:
                    self._kill_now.set()

    async def _send_one(self, sender: Any, message: Any) -> None:
        """Send a message as a careful application does: a refused send is retried with the same message id."""
        from azure.servicebus.exceptions import ServiceBusError

        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            self._under_way += 1
            try:
                await sender.send_messages(message, timeout=SEND_TIMEOUT_S)
            except ServiceBusError as error:
                self._refused += 1
                if time.monotonic() > give_up_s:
                    raise PairbusError(f"{message.message_id} is refused for {PATIENCE_S:.0f} s: {error}") from error
            else:
                return
            finally:
                self._under_way -= 1
            heed_cancellation()
            await asyncio.sleep(RETRY_PAUSE_S)

    # ── the outage ──

    async def _lose(self, home: ChildBroker) -> float:
        """Kill the primary; returns how long it took until every application was sending again."""
        self._say(
            "sending",
            f"{len(APPLICATIONS)} applications, {self._messages} messages to {IN_WORDS} (seed {self._seed})",
        )
        await self._kill_now.wait()
        under_way = self._under_way
        self._killed_s = time.monotonic()
        await home.kill()
        self._outage.set()
        accepted = self._book.accepted_count
        self._say("outage", f"kill -9 of {PRIMARY} after {accepted} messages, with {under_way} sends under way")
        hit = {ROUTES[number % len(ROUTES)] for number in range(self._outage_from, self._outage_to)}
        await _until(lambda: hit <= self._diverted_since_s.keys(), "all applications send again")
        failover_s = max(self._diverted_since_s.values()) - self._killed_s
        self._say(
            "diverted",
            f"all applications send again {failover_s:.1f} s later, to {SECONDARY};"
            f" {self._refused} refused sends were repeated",
        )
        return failover_s

    async def _recover(self, home: ChildBroker, away: ChildBroker, clients: dict[str, PairedServiceBusClient]) -> None:
        await _until(lambda: self._book.accepted_count >= self._outage_to, f"{SECONDARY} has taken all")
        await _until(lambda: self._pings[False] > 0, f"{PRIMARY} has been pinged")
        waiting = await asyncio.to_thread(_backlog, _away_of(away))
        self._say("backlog", f"{waiting} messages wait in {SECONDARY}; {self._pings[False]} pings of {PRIMARY} failed")
        await home.start()
        ready_s = time.monotonic()
        await _until(
            lambda: all(state is HEALTHY for client in clients.values() for state in client.states().values()),
            f"a ping has found {PRIMARY}",
        )
        self._say(
            "recovered",
            f"{PRIMARY} is back (process {home.pid}); pings found it after {time.monotonic() - ready_s:.1f} s",
        )
        self._back.set()

    async def _move_home(self, home: ChildBroker, away: ChildBroker, drain: Drain) -> tuple[int, float]:
        """Move the backlog home, after the recovery: a single drain ends at once while the primary is away."""
        began_s = time.monotonic()
        moved = await drain.move(Way(_home_of(home), PRIMARY, _away_of(away), BACKLOG_QUEUES))
        drain_s = time.monotonic() - began_s
        self._say("moved", f"the syphon brought {moved} messages home in {drain_s:.1f} s")
        return moved, drain_s

    # ── the end ──

    async def _check(self, client: PairedServiceBusClient, home: ChildBroker) -> None:
        places = [place for entity in ENTITIES.values() for place in entity.places]
        emptied = (empty(client, one, _home_of(home), partial(self._book.found, one), PATIENCE_S) for one in places)
        await asyncio.gather(*emptied)
        found = self._book.verdict(diverted=0, moved=0, failover_s=0, drain_s=0, ledger=())
        self._say(
            "checked",
            f"{found.in_primary} of {found.sent} messages are in {PRIMARY}:"
            f" {found.lost} lost, {found.duplicated} duplicated, {found.altered} altered",
        )


async def _until(holds: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > give_up_s:
            raise PairbusError(f"waited {PATIENCE_S:.0f} s in vain until {what}")
        await asyncio.sleep(LOOK_S)


def _home_of(broker: ChildBroker) -> str:
    return broker.connection_strings[PRIMARY]


def _away_of(broker: ChildBroker) -> str:
    return broker.connection_strings[SECONDARY]


def _backlog(connection_string: str) -> int:
    from pairbus.cli.admin_client import administration

    with administration(connection_string) as client:
        queues: list[QueueRuntimeProperties] = list(client.list_queues_runtime_properties())
    return sum(queue.active_message_count or 0 for queue in queues if queue_index(PRIMARY, queue.name) is not None)
