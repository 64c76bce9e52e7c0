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
from typing import TYPE_CHECKING, Any, Literal, cast

from pairbus.cli import demo_pair
from pairbus.cli.demo_book import Book, DemoVerdict
from pairbus.cli.demo_pair import APPLICATIONS, BACKLOG_QUEUES, ENTITIES, IN_WORDS, PRIMARY, SECONDARY
from pairbus.cli.report import write_page
from pairbus.errors import PairbusError
from pairbus.ledger import Ledger, MeterKind, read
from pairbus.pairing.backlog import queue_index, queue_path
from pairbus.pairing.events import Diverted, Event, PingSent
from pairbus.pairing.failover import HEALTHY

if TYPE_CHECKING:
    from pairbus.aio import PairedServiceBusClient
    from pairbus.cli.child_broker import ChildBroker
    from pairbus.cli.demo_spark import SparkDrain

ROUTES = [(application, entity) for application, entities in APPLICATIONS.items() for entity in entities]
FAILOVER_INTERVAL_S = 1.0
PING_INTERVAL_S = 1.0
RETRY_PAUSE_S = 0.2
LOOK_S = 0.05
PATIENCE_S = 60.0  # for a step that takes a second or two on an idle machine
LEDGER_CLOSE_S = 2.0


class Story:
    """A run of the demo. `say` prints a step: its word, and the rest of the line."""

    def __init__(
        self, messages: int, seed: int, say: Callable[[str, str], None], page: Path, *, on_spark: bool
    ) -> None:
        self._messages = messages
        self._seed = seed
        self._say = say
        self._page = page
        self._on_spark = on_spark
        self._book = Book(seed)
        self._outage_from = messages * 2 // 5
        "Number of the first message that is sent when the primary is dead."
        self._outage_to = messages * 4 // 5
        "Number of the first message that is sent when the primary is back."
        kill_range = (max(1, self._outage_from // 2), max(1, self._outage_from * 9 // 10))
        self._kill_at = random.Random(seed).randint(*kill_range)
        "Number of accepted messages at which the primary is killed."
        self._kill_now, self._outage, self._back = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._under_way = self._refused = self._diverted = self._moved = 0
        self._diverted_since_s: dict[tuple[str, str], float] = {}
        "Application and entity → time at which the secondary took the first message."
        self._pings: Counter[bool] = Counter()
        self._failover_s = self._drain_s = 0.0

    async def tell(self) -> DemoVerdict:
        with tempfile.TemporaryDirectory(prefix="pairbus-demo-") as name:
            folder = Path(name)
            ledger, report = folder / "ledger", None
            async with AsyncExitStack() as ends:
                drain: SparkDrain | None = None
                if self._on_spark:
                    from pairbus.cli.demo_spark import SparkDrain

                    drain = await ends.enter_async_context(SparkDrain(folder, ledger, self._say))
                await self._play(folder, ledger, drain)
                # All clients are closed: the ledger is complete. Spark, if there is one, still runs.
                if drain is not None and drain.spark is not None:
                    await asyncio.to_thread(write_page, drain.spark, ledger, self._page)
                    self._say("report", f"what it did and what it cost is in {self._page}")
                    report = str(self._page)
                return self._book.verdict(
                    diverted=self._diverted,
                    moved=self._moved,
                    failover_s=self._failover_s,
                    drain_s=self._drain_s,
                    ledger=read(ledger),
                    report=report,
                )

    async def _play(self, folder: Path, ledger: Path, drain: SparkDrain | None) -> None:
        async with AsyncExitStack() as ends:
            primary, secondary = await demo_pair.start_pair(ends, folder)
            home, away = primary.connection_strings[PRIMARY], secondary.connection_strings[SECONDARY]
            clients = {name: await self._client(ends, name, home, away, ledger) for name in APPLICATIONS}
            self._say("paired", f"{PRIMARY} (process {primary.pid}) with {SECONDARY} (process {secondary.pid})")
            try:
                async with asyncio.TaskGroup() as group:
                    for index, (application, entity) in enumerate(ROUTES):
                        numbers = range(index, self._messages, len(ROUTES))
                        group.create_task(self._send(clients[application], application, entity, numbers))
                    await self._lose(primary)
                    await self._recover(primary, away, list(clients.values()))
            except* PairbusError as errors:
                raise errors.exceptions[0] from errors  # the user gets the first error
            # After the recovery: a single drain ends at once while the primary is away.
            began_s = time.monotonic()
            self._moved = await (_move_here(home, away, ledger) if drain is None else drain.move(home, away))
            self._drain_s = time.monotonic() - began_s
            self._say("moved", f"the syphon brought {self._moved} messages home in {self._drain_s:.1f} s")
            await self._check(clients["finance"], home)

    async def _client(
        self, ends: AsyncExitStack, name: str, home: str, away: str, ledger: Path
    ) -> PairedServiceBusClient:
        return await demo_pair.new_client(
            ends,
            home,
            away,
            failover_interval=FAILOVER_INTERVAL_S,
            ping_primary_interval=PING_INTERVAL_S,
            ledger=ledger,
            on_event=partial(self._heard, name),
        )

    def _heard(self, application: str, event: Event) -> None:
        if isinstance(event, Diverted):
            self._diverted += event.count
            self._diverted_since_s.setdefault((application, event.path), time.monotonic())
        elif isinstance(event, PingSent):
            self._pings[event.accepted] += 1

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
                if self._book.accepted_count >= self._kill_at:
                    self._kill_now.set()

    async def _send_one(self, sender: Any, message: Any) -> None:
        """Send a message as a careful application does: a refused send is retried with the same message id."""
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            self._under_way += 1
            refusal = await demo_pair.refusal_of(sender, message)
            self._under_way -= 1
            if refusal is None:
                return
            self._refused += 1
            if time.monotonic() > give_up_s:
                raise PairbusError(f"{message.message_id} is refused for {PATIENCE_S:.0f} s: {refusal}") from refusal
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _lose(self, primary: ChildBroker) -> None:
        """Kill the primary, and wait until every application sends again."""
        count = len(APPLICATIONS)
        self._say("sending", f"{count} applications, {self._messages} messages to {IN_WORDS} (seed {self._seed})")
        await self._kill_now.wait()
        under_way, killed_s = self._under_way, time.monotonic()
        await primary.kill()
        self._outage.set()
        accepted = self._book.accepted_count
        self._say("outage", f"kill -9 of {PRIMARY} after {accepted} messages, with {under_way} sends under way")
        hit = {ROUTES[number % len(ROUTES)] for number in range(self._outage_from, self._outage_to)}
        await _until(lambda: hit <= self._diverted_since_s.keys(), "all applications send again")
        self._failover_s = max(self._diverted_since_s.values()) - killed_s
        self._say(
            "diverted",
            f"all applications send again {self._failover_s:.1f} s later, to {SECONDARY};"
            f" {self._refused} refused sends were repeated",
        )

    async def _recover(self, primary: ChildBroker, away: str, clients: list[PairedServiceBusClient]) -> None:
        await _until(lambda: self._book.accepted_count >= self._outage_to, f"{SECONDARY} has taken all")
        await _until(lambda: self._pings[False] > 0, f"{PRIMARY} has been pinged")
        waiting = await asyncio.to_thread(_backlog, away)
        self._say("backlog", f"{waiting} messages wait in {SECONDARY}; {self._pings[False]} pings of {PRIMARY} failed")
        await primary.start()
        ready_s = time.monotonic()
        await _until(
            lambda: all(state is HEALTHY for client in clients for state in client.states().values()),
            f"a ping has found {PRIMARY}",
        )
        found_s = time.monotonic() - ready_s
        self._say("recovered", f"{PRIMARY} is back (process {primary.pid}); pings found it after {found_s:.1f} s")
        self._back.set()

    async def _check(self, client: PairedServiceBusClient, home: str) -> None:
        places = [place for entity in ENTITIES.values() for place in entity.places]
        found = self._book.found
        await asyncio.gather(*(demo_pair.empty(client, one, home, partial(found, one), PATIENCE_S) for one in places))
        counts = self._book.verdict()
        self._say(
            "checked",
            f"{counts.in_primary} of {counts.sent} messages are in {PRIMARY}:"
            f" {counts.lost} lost, {counts.duplicated} duplicated, {counts.altered} altered",
        )


async def _until(holds: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > give_up_s:
            raise PairbusError(f"waited {PATIENCE_S:.0f} s in vain until {what}")
        await asyncio.sleep(LOOK_S)


def _backlog(connection_string: str) -> int:
    from pairbus.cli.admin_client import administration

    with administration(connection_string) as client:
        queues = list(client.list_queues_runtime_properties())
    return sum(queue.active_message_count or 0 for queue in queues if queue_index(PRIMARY, queue.name) is not None)


async def _move_here(home: str, away: str, folder: Path) -> int:
    """Move the backlog home by a syphon in this process; returns how many messages were moved."""
    from pairbus.cli.backlogs import carrier_of
    from pairbus.client.sides import Side
    from pairbus.syphon import Syphon, SyphonSettings

    sides = {"primary": Side.from_connection_string(home), "secondary": Side.from_connection_string(away)}
    queues = [queue_path(PRIMARY, index) for index in range(BACKLOG_QUEUES)]
    ledger = Ledger(folder, client="syphon")

    def meter(
        side: Literal["primary", "secondary"], entity: str, kind: str, count: int, size_bytes: int, outcome: str
    ) -> None:
        meter_kind = cast(MeterKind, kind)
        ledger.meter(side, sides[side].name, entity, meter_kind, size_bytes, count, outcome, cause="syphon")

    try:
        async with carrier_of(sides["primary"]) as primary, carrier_of(sides["secondary"]) as secondary:
            settings = SyphonSettings()
            syphon = Syphon(primary, secondary, queues, settings=settings, publish=ledger.record, meter=meter)
            return (await syphon.run_once()).moved
    finally:
        ledger.close(LEDGER_CLOSE_S)
