"""A pair of namespaces in a broker process, diverted messages, and checks of the messages at home."""

from __future__ import annotations

import asyncio
import json
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.backlog.envelope import Envelope, wrap
from pairbus.spark.connections import Secret
from pairbus.spark.syphon_job.job import SyphonJob
from pairbus.spark.syphon_job.journal import Location
from pairbus.spark.syphon_job.rounds import Quotas
from pairbus.spark.syphon_job.source import SyphonReader, SyphonSource
from pairbus.syphon.decide.settings import SyphonSettings
from pairbus.transport import Carrier
from tests.brokers import BrokerProcess
from tests.syphon.world import bare

BACKLOG = "contoso/x-servicebus-transfer"
PAGE = 500
THERE_S = 10.0  # for a message that is there, on a busy machine


@dataclass
class SyphonWorld:
    """`contoso` is home, `fabrikam` has the backlog. What `divert` sends is known, and `verdict` compares."""

    broker: BrokerProcess
    location: Path
    home: str = "PAIRBUS_TEST_HOME"
    away: str = "PAIRBUS_TEST_AWAY"
    sent: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    "Message id → destination, and what must arrive."
    first_queue: int = 0
    "Numbers of backlog queues are counted from this one."
    away_broker: BrokerProcess | None = None
    "Process of `fabrikam`, when that has one of its own."

    @property
    def secondary(self) -> BrokerProcess:
        return self.away_broker or self.broker

    def divert(self, count: int, *paths: str, queue: int = 0, size: int = 20, sender: str | None = None) -> None:
        """Send diverted messages; with `sender`, like a client with `ordered=True`."""
        asyncio.run(self._divert(count, paths, queue, size, sender))

    async def _divert(self, count: int, paths: tuple[str, ...], queue: int, size: int, orderer: str | None) -> None:
        async with Carrier(self.secondary.connection_string("fabrikam")) as carrier:
            sender = await carrier.sender(f"{BACKLOG}/{self.first_queue + queue}")
            for page in range(0, count, PAGE):
                answers = []
                for number in range(page, min(page + PAGE, count)):
                    path, message_id = paths[number % len(paths)], f"{uuid.uuid4()}"
                    body = f"{number}".encode().ljust(size, b".")
                    payload = Message(properties=Properties(message_id=message_id), data=[body]).encode()
                    self.sent[message_id] = (path, payload)
                    if not sender.sendable:
                        await sender.ready()
                    answers.append(
                        sender.send_nowait(
                            wrap(payload, Envelope(path, sender=orderer, counter=number if orderer else None))
                        )
                    )
                await asyncio.gather(*answers)

    def found(self, *paths: str, expects: bool = False) -> dict[str, list[bytes]]:
        """Receive and delete all messages at home; return path → messages. `expects`: all that were sent are there."""
        return asyncio.run(self._found(paths, expects))

    async def _found(self, paths: tuple[str, ...], expects: bool) -> dict[str, list[bytes]]:
        got: dict[str, list[bytes]] = {path: [] for path in paths}
        async with Carrier(self.broker.connection_string("contoso")) as carrier:
            connection = await carrier.connection()
            for path in paths:
                wanted = sum(destination == path for destination, _ in self.sent.values()) if expects else 0
                receiver = await connection.receiver(path, mode="receive-and-delete", credit=PAGE)
                while batch := await receiver.receive(PAGE, THERE_S if len(got[path]) < wanted else 0.5):
                    got[path] += [received.payload for received in batch]
                await receiver.close()
        return got

    def check(self, *paths: str) -> int:
        """Check that the paths hold each message that was sent exactly once."""
        expects = {destination for destination, _ in self.sent.values()} >= set(paths)
        return self.check_found(self.found(*paths, expects=expects), duplicates_max=0)

    def check_found(self, found: dict[str, list[bytes]], *, duplicates_max: int) -> int:
        """Check that no message is lost, misrouted or altered; return the number of duplicates."""
        copies: Counter[str] = Counter()
        for path, payloads in found.items():
            for payload in payloads:
                properties = Message.decode(payload).properties
                assert properties is not None
                destination, expected = self.sent[properties.message_id]
                assert destination == path, f"{properties.message_id} is for {destination}, and was found in {path}"
                assert bare(payload) == bare(expected)
                copies[properties.message_id] += 1
        lost = self.sent.keys() - copies.keys()
        assert not lost, f"{len(lost)} of {len(self.sent)} are lost"
        duplicates = copies.total() - len(copies)
        assert duplicates <= duplicates_max, f"{duplicates} duplicates"
        return duplicates

    def waiting(self, queue: int = 0) -> int:
        with self.secondary.admin("fabrikam") as admin:
            return admin.get_queue_runtime_properties(f"{BACKLOG}/{self.first_queue + queue}").active_message_count or 0

    def operations(self) -> Counter[str]:
        """Operations on the backlog queues since the start, by kind, as a metered broker counts them."""
        port, headers = (
            self.secondary.ports["fabrikam"],
            {"Authorization": self.secondary.token("", namespace="fabrikam")},
        )
        request = urllib.request.Request(f"http://127.0.0.1:{port}/$meter", headers=headers)
        counted: Counter[str] = Counter()
        with urllib.request.urlopen(request) as answer:
            for row in json.load(answer):
                if (row["entity"] or "").startswith(BACKLOG):
                    counted[row["kind"]] += row["count"]
        return counted

    def journaled(self) -> list[dict[str, Any]]:
        lines: list[str] = []
        for path in sorted(self.location.glob("journal/*/*.jsonl")):
            with path.open() as file:
                lines += file
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def secret_file(self, namespace: str) -> str:
        """Processes of a Spark that runs already do not see variables that are set now."""
        path = self.location.with_name(f"{namespace}.txt")
        broker = self.secondary if namespace == "fabrikam" else self.broker
        path.write_text(broker.connection_string(namespace))
        return f"@{path}"

    def job(self, **changes: Any) -> SyphonJob:
        job = SyphonJob(
            Secret(f"env:{self.home}"),
            Secret(f"env:{self.away}"),
            Location(self.location),
            SyphonSettings(send_timeout_s=3.0),
            run=uuid.uuid4().hex[:12],
        )
        return replace(job, **changes)

    def reader(
        self,
        job: SyphonJob | None = None,
        *,
        queues: int = 1,
        paths: list[str] | None = None,
        quotas: Quotas | None = None,
        once: bool = False,
    ) -> SyphonReader:
        """Make a reader as Spark's source runner in the driver does."""
        job = job or self.job()
        job.location.prepare(job.run)
        paths = paths or [f"{BACKLOG}/{self.first_queue + index}" for index in range(queues)]
        job = replace(job, queues=dict.fromkeys(paths, 1_000), quotas=quotas or Quotas(), once=once)
        return SyphonSource(job.to_options()).streamReader(None)  # type: ignore[arg-type]


@contextmanager
def syphon_world(
    folder: Path,
    *,
    queues: int = 2,
    lock_s: int = 60,
    apart: bool = False,
    metered: bool = False,
    **home_queues: Any,
) -> Iterator[SyphonWorld]:
    """`apart`: a broker process for each namespace, so that one of them can die."""
    with ExitStack() as ends, pytest.MonkeyPatch.context() as environment:
        options = ("--meter", str(folder / "meter")) if metered else ()
        broker = ends.enter_context(BrokerProcess(folder / "data", options=options, strict=True))
        world = SyphonWorld(broker, folder / "location")
        if apart:
            world.away_broker = ends.enter_context(
                BrokerProcess(folder / "away", namespaces=("fabrikam",), strict=True)
            )
        environment.setenv(world.home, broker.connection_string("contoso"))
        environment.setenv(world.away, world.secondary.connection_string("fabrikam"))
        with world.secondary.admin("fabrikam") as admin:
            for index in range(queues):
                admin.create_queue(
                    f"{BACKLOG}/{index}", lock_duration=timedelta(seconds=lock_s), max_delivery_count=2147483647
                )
        with broker.admin("contoso") as admin:
            for name, settings in home_queues.items():
                admin.create_queue(name, **settings)
        yield world
