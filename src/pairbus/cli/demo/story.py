"""The story that `pairbus demo` tells: sending, outage, diverted, backlog, recovered, moved, checked.

The messages are in three parts. The primary is killed while the first part is being sent; the second part is sent while
it is dead, and the third when it is back. So every run has all steps, however fast the machine.
The backlog is moved home by `pairbus syphon`, and the report made by `pairbus report`, as an operator does it.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from azure.servicebus.exceptions import ServiceBusError

from pairbus.aio import PairedServiceBusClient
from pairbus.cli.admin.admin_client import administration
from pairbus.cli.demo import pair as demo_pair
from pairbus.cli.demo.book import Book, DemoVerdict
from pairbus.cli.demo.pair import ENTITIES, PRIMARY, ROUTES, SECONDARY, DemoEntity, DemoPair
from pairbus.cli.pipeline.spark_options import EngineName
from pairbus.cli.serve.children import run_command
from pairbus.errors import PairbusError
from pairbus.explorer import Address, walk
from pairbus.ledger import operations_by_cause, read
from pairbus.pairing.events import Diverted, Event, PingSent
from pairbus.pairing.failover import HEALTHY
from pairbus.transport import Carrier

CLIENT = {"failover_interval": 1.0, "ping_primary_interval": 1.0}
SYPHON = ("syphon", "--once", "--primary-name", PRIMARY, "--backlog-queue-count", str(demo_pair.BACKLOG_QUEUES))
ON_SPARK = ("--master", "local[2]", "--tasks", "1")  # for a few hundred messages more workers cost more than they save
NOT_OURS = ("PAIRBUS_TARGET", "SPARK_REMOTE")
"Variables that would send the messages, or the work, to a place outside of the demo."
LOOK_S = 0.05
PATIENCE_S = 60.0  # without any accepted message, for a step that takes a second or two on an idle machine

Clients = dict[str, PairedServiceBusClient]


class Story:
    """A run of the demo. `say` prints a step: its word, and the rest of the line."""

    def __init__(
        self, messages: int, seed: int, engine: EngineName, page: Path, say: Callable[[str, str], None]
    ) -> None:
        self._seed = seed
        self._parts = messages * 2 // 5, messages * 4 // 5, messages
        "Numbers at which the parts end."
        self._engine = engine
        self._page = page
        self._say = say
        self._book = Book(seed)
        self._diverted_at_s: dict[tuple[str, str], float] = {}
        "Application and entity → time at which the secondary took the first message."
        self._failed_pings = 0
        self._refusals: list[ServiceBusError] = []
        self._numbers: dict[str, Any] = {"diverted": 0, "report": None}
        "Numbers of the verdict that are not about single messages."

    async def tell(self) -> DemoVerdict:
        """Run all steps. SIGTERM cancels them, as Ctrl-C does, so that nothing is left behind."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with tempfile.TemporaryDirectory(prefix="pairbus-demo-") as name:
            folder = Path(name)
            ledger = folder / "ledger"
            async with demo_pair.running_pair(folder) as pair:
                options = {**CLIENT, "ledger": ledger}
                async with pair.clients(lambda name: {**options, "on_event": partial(self._heard, name)}) as clients:
                    await self._live_through(pair, clients)
                await self._move(pair, folder, ledger)
                await self._check(pair)
            if self._engine is EngineName.spark:
                await run_command(["report", str(ledger), "--out", str(self._page)], folder, _environment())
                self._say("report", f"the outage and its cost are in {self._page}")
                self._numbers["report"] = str(self._page)
            return DemoVerdict(**self._book.counts(), **self._numbers, cost=operations_by_cause(read(ledger)))

    def _heard(self, application: str, event: Event) -> None:
        if isinstance(event, Diverted):
            self._numbers["diverted"] += event.count
            self._diverted_at_s.setdefault((application, event.path), time.monotonic())
        elif isinstance(event, PingSent):
            self._failed_pings += not event.accepted

    async def _live_through(self, pair: DemoPair, clients: Clients) -> None:
        """Send all messages, and kill and start the primary meanwhile."""
        first, second, end = self._parts
        self._say("paired", f"{PRIMARY} (process {pair.primary.pid}) with {SECONDARY} (process {pair.secondary.pid})")
        applications = f"{len(clients)} applications, {end} messages to {demo_pair.IN_WORDS}"
        self._say("sending", f"{applications} (seed {self._seed})")
        async with asyncio.TaskGroup() as group:

            def send(numbers: range) -> None:
                for start, (application, entity) in enumerate(ROUTES):
                    mine = numbers[start :: len(ROUTES)]
                    group.create_task(self._send(clients[application], application, entity, mine))

            send(range(first))
            killed_s = await self._lose(pair, first)
            send(range(first, second))
            await self._divert(killed_s, ROUTES[: second - first])
            await self._recover(pair, clients, second)
            send(range(second, end))
            await self._until(lambda: len(self._book.accepted) == end, "all messages are accepted")

    async def _send(self, client: PairedServiceBusClient, application: str, entity: DemoEntity, numbers: range) -> None:
        async with entity.sender(client) as sender:
            for number in numbers:
                message = self._book.new_message(entity, application, number)
                await demo_pair.send(sender, message, self._refusals.append)
                self._book.accepted.add(str(message.message_id))

    async def _lose(self, pair: DemoPair, count: int) -> float:
        """Kill the primary while the first messages, so many, are being sent; returns the time."""
        kill_at = random.Random(self._seed).randint(max(1, count // 2), max(1, count * 9 // 10))
        await self._until(lambda: len(self._book.accepted) >= kill_at, f"{PRIMARY} has taken {kill_at} messages")
        under_way, killed_s = len(self._book.sent) - len(self._book.accepted), time.monotonic()
        await pair.primary.kill()
        accepted = len(self._book.accepted)
        self._say("outage", f"kill -9 of {PRIMARY} after {accepted} messages, with {under_way} sends under way")
        return killed_s

    async def _divert(self, killed_s: float, routes: list[tuple[str, DemoEntity]]) -> None:
        """Wait until every application sends again."""
        hit = {(application, entity.name) for application, entity in routes}
        await self._until(lambda: hit <= self._diverted_at_s.keys(), "all applications send again")
        failover_s = max(self._diverted_at_s.values()) - killed_s
        self._numbers["failover_s"] = round(failover_s, 3)
        again = f"all applications send again {failover_s:.1f} s later, to {SECONDARY}"
        self._say("diverted", f"{again}; {len(self._refusals)} refused sends were repeated")

    async def _recover(self, pair: DemoPair, clients: Clients, count: int) -> None:
        """Start the primary when so many messages are accepted, and wait until pings have found it."""
        await self._until(lambda: len(self._book.accepted) >= count, f"{SECONDARY} has taken all")
        await self._until(lambda: self._failed_pings > 0, f"{PRIMARY} has been pinged")
        waiting = await asyncio.to_thread(_count_messages, pair.connection_strings[1])
        self._say("backlog", f"{waiting} messages wait in {SECONDARY}; {self._failed_pings} pings of {PRIMARY} failed")
        await pair.primary.start()
        ready_s = time.monotonic()
        await self._until(
            lambda: all(state is HEALTHY for client in clients.values() for state in client.states().values()),
            f"a ping has found {PRIMARY}",
        )
        found_s = time.monotonic() - ready_s
        self._say("recovered", f"{PRIMARY} is back (process {pair.primary.pid}); pings found it after {found_s:.1f} s")

    async def _move(self, pair: DemoPair, folder: Path, ledger: Path) -> None:
        """Move the backlog home; after the recovery, because a single drain ends at once while the primary is away."""
        self._say("moving", f"pairbus syphon --once --engine {self._engine}")
        words = [*SYPHON, "--engine", self._engine, "--ledger", str(ledger)]
        if self._engine is EngineName.spark:
            words += [*ON_SPARK, "--journal", str(folder / "journal")]
        namespaces = dict(zip(("PAIRBUS_PRIMARY", "PAIRBUS_SECONDARY"), pair.connection_strings, strict=True))
        began_s = time.monotonic()
        output = await run_command(words, folder, _environment() | namespaces)
        drain_s = time.monotonic() - began_s
        [moved] = re.findall(r"moved (\d+) message", output)
        self._numbers |= {"moved": int(moved), "drain_s": round(drain_s, 3)}
        self._say("moved", f"the syphon brought {moved} messages home in {drain_s:.1f} s")

    async def _check(self, pair: DemoPair) -> None:
        """Look at all messages of the primary."""
        async with Carrier(pair.connection_strings[0]) as primary:
            for place in (place for entity in ENTITIES for place in entity.places):
                async for page in walk(primary, Address.parse(place)):
                    for payload in page:
                        self._book.found(place, payload)
        counts = "{in_primary} of {sent} messages are in %s: {lost} lost, {duplicated} duplicated, {altered} altered"
        self._say("checked", counts.format(**self._book.counts()) % PRIMARY)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until this holds; PairbusError when it does not, and no message is accepted for a minute."""
        accepted, give_up_s = -1, 0.0
        while not holds():
            if accepted != len(self._book.accepted):
                accepted, give_up_s = len(self._book.accepted), time.monotonic() + PATIENCE_S
            elif time.monotonic() > give_up_s:
                why = f"; the last refused send: {self._refusals[-1]}" if self._refusals else ""
                raise PairbusError(f"waited {PATIENCE_S:.0f} s in vain until {what}{why}")
            await asyncio.sleep(LOOK_S)


def _count_messages(connection_string: str) -> int:
    with administration(connection_string) as client:
        return sum(queue.active_message_count or 0 for queue in client.list_queues_runtime_properties())


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NOT_OURS}
