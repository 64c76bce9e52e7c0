"""Write one sample of every format that outlives a process: `python -m tools.write_samples 0.4`.

The samples of a release are kept in tests/samples/RELEASE, a compressed archive for each format and `expected.json`;
tests/test_formats.py reads those of every release. They are made as a user's files are: the paired client and the SDK
talk to broker processes that are killed, so that the last commits are in the logs of SQLite alone. Staging and
journal are written by the classes that a task of Spark uses, without Spark.

A sample of a published release is never written again: this program refuses to replace one.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tarfile
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from tests.brokers import BrokerProcess

from pairbus import PairedServiceBusClient
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Long, Symbol, Timestamp
from pairbus.broker.store import schema as store_schema
from pairbus.ledger import rows as ledger_rows
from pairbus.spark.source.intake import SealTracker, TaskShare
from pairbus.spark.staging import log as spark_staging
from pairbus.spark.staging.log import Staging
from pairbus.spark.staging.stage_book import StageBook
from pairbus.spark.staging.stage_file import StageWriter, identity_of
from pairbus.spark.syphon_job import journal as spark_journal
from pairbus.spark.syphon_job.journal import MOVED, Journal, JournalRow, Location, encode_rows
from pairbus.spool import files as spool_files
from pairbus.transport import connect

SAMPLES = Path(__file__).parent.parent / "tests" / "samples"
FAR = datetime(2099, 1, 1, tzinfo=UTC)
AWAY = ("away-1", "away-2", "away-3")
SPOOLED = ("spooled-1", "spooled-2")
ENTITY = "contoso/orders"
NOT_KEPT = ("reserve", "lock", "-shm")  # room on the disk, and files that SQLite and the owner make again
TIME_TO_LIVE = timedelta(days=14)

MAJORS = {
    "envelope": 1,
    "spool": spool_files.VERSION,
    "journal": spark_journal.SCHEMA,
    "staging": spark_staging.VERSION,
    "ledger": ledger_rows.SCHEMA,
    "store": store_schema.VERSION,
}
"Major version of each format that this code writes."


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m tools.write_samples RELEASE, such as 0.4")
        return 2
    target = SAMPLES / sys.argv[1]
    if target.exists():
        print(f"{target} is there: samples of a release are kept. Delete them first if the release is not out yet.")
        return 1
    with tempfile.TemporaryDirectory(prefix="pairbus-samples-") as folder:
        expected = write(Path(folder))
        target.mkdir(parents=True)
        for name in MAJORS:
            pack(Path(folder) / name, target / f"{name}.tar.xz")
    (target / "expected.json").write_text(json.dumps({"majors": MAJORS, **expected}, indent=1, sort_keys=True) + "\n")
    print("\n".join(f"{path.stat().st_size:6d} bytes  {path}" for path in sorted(target.iterdir())))
    return 0


def pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:xz") as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.endswith(NOT_KEPT):
                tar.add(path, str(path.relative_to(folder)), filter=_anonymous)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    return info


def write(folder: Path) -> dict[str, Any]:
    """Write a folder for each format; return their contents."""
    socket.gethostname = lambda: "sample-host"
    primary = BrokerProcess(folder / "primary", namespaces=["contoso"])
    secondary = BrokerProcess(folder / "secondary", namespaces=["fabrikam"])
    with primary, secondary:
        stored = fill_store(primary)
        away = send_in_outages(folder, primary, secondary)
        os.rename(folder / "primary" / "contoso", folder / "store")  # the broker was killed
    staged = asyncio.run(write_staging(folder / "staging"))
    rows = asyncio.run(write_journal(folder / "journal"))
    return {"store": stored, **away, "staging": staged, "journal": rows}


# ── store ──


def fill_store(broker: BrokerProcess) -> dict[str, Any]:
    """Leave messages in every state, and a session with a state."""
    with broker.admin() as admin:
        admin.create_queue("orders", max_delivery_count=3)
        admin.create_queue("tickets", requires_session=True)
    with ServiceBusClient.from_connection_string(broker.connection_string()) as client:
        with client.get_queue_sender("orders") as sender:
            for name in ("active-1", "deferred-1", "dead-1", "active-2"):
                sender.send_messages(told(name))
            sender.schedule_messages(told("scheduled-1"), FAR)
        with client.get_queue_receiver("orders", max_wait_time=10) as receiver:
            for message in receiver.receive_messages(4):
                if message.message_id == "deferred-1":
                    receiver.defer_message(message)
                elif message.message_id == "dead-1":
                    receiver.dead_letter_message(message, reason="Sample", error_description="kept")
                else:
                    receiver.abandon_message(message)
        with client.get_queue_sender("tickets") as sender:
            sender.send_messages(told("ticket-1", session_id="s1"))
        with client.get_queue_receiver("tickets", session_id="s1", max_wait_time=10) as receiver:
            receiver.session.set_state(b"half way")
    return {
        "orders": {
            "active": ["active-1", "active-2"],
            "deferred": ["deferred-1"],
            "dead": ["dead-1"],
            "scheduled": ["scheduled-1"],
        },
        "tickets": {"active": ["ticket-1"]},
        "session_state": {"s1": "half way"},
    }


def told(name: str, **settings: Any) -> ServiceBusMessage:
    properties: Any = {"number": 7, "text": "ünï", "nothing": None}
    return ServiceBusMessage(f"body of {name}", message_id=name, application_properties=properties, **settings)


# ── envelope, spool and ledger ──


def send_in_outages(folder: Path, primary: BrokerProcess, secondary: BrokerProcess) -> dict[str, Any]:
    """Send home, then with the primary killed, then with both killed."""
    client = PairedServiceBusClient.from_connection_strings(
        primary.connection_string("contoso"),
        secondary.connection_string("fabrikam"),
        backlog_queue_count=1,
        failover_interval=0,
        attempt_timeout=2,
        enable_syphon=False,
        spool_dir=folder / "spool",
        ledger=folder / "ledger",
    )
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(told("home-1"))
        primary.kill()
        sender.send_messages(told(AWAY[0]))
        sender.send_messages(told(AWAY[1], session_id="s1", time_to_live=TIME_TO_LIVE, subject="of a session"))
        sender.send_messages(told(AWAY[2], scheduled_enqueue_time_utc=FAR))
        with secondary.admin("fabrikam") as admin:
            [backlog] = admin.list_queues()
        envelopes = asyncio.run(peek_raw(secondary.connection_string("fabrikam"), backlog.name))
        secondary.kill()
        for name in SPOOLED:
            sender.send_messages(told(name))
    (folder / "envelope").mkdir()
    for name, payload in zip(AWAY, envelopes, strict=True):
        (folder / "envelope" / f"{name}.amqp").write_bytes(payload)
    own: dict[str, dict[str, Any]] = {name: {} for name in AWAY}
    own[AWAY[1]] = {"session_id": "s1", "ttl_ms": TIME_TO_LIVE // timedelta(milliseconds=1)}
    own[AWAY[2]] = {"scheduled_ms": int(FAR.timestamp() * 1000)}
    return {
        "envelope": own,
        "spool": list(SPOOLED),
        "ledger": {"home": ["home-1"], "diverted": [*AWAY, *SPOOLED]},
    }


async def peek_raw(connection_string: str, queue: str) -> list[bytes]:
    """Receive the messages of a queue as raw bytes, without settling them."""
    async with await connect(connection_string) as connection:
        receiver = await connection.receiver(queue, credit=10)
        received: list[bytes] = []
        while len(received) < len(AWAY):
            received += [message.payload for message in await receiver.receive(10, 10.0)]
    return received


# ── staging and journal ──


def message(number: int) -> bytes:
    annotations = {Symbol("x-opt-sequence-number"): Long(number), Symbol("x-opt-enqueued-time"): Timestamp(1_000)}
    own = Properties(message_id=f"staged-{number}")
    return Message(annotations=annotations, properties=own, data=[b"body %d" % number]).encode()


async def write_staging(folder: Path) -> dict[str, Any]:
    """Leave a batch that was committed, and one that was sealed and not committed."""
    book = StageBook(Staging(str(folder)), ENTITY, 3_600.0)
    for batch, numbers in ((1, (1, 2)), (2, (3, 4, 5))):
        plan = book.plan(batch, [10])
        stage = StageWriter(book.staging.storage, book.staging.new_stage(batch, 0))
        for number in numbers:
            stage.add(message(number), identity_of(message(number)))
        stage.finish()
        tracker = SealTracker(book.staging, TaskShare(book.owner, batch, 0, 10, plan.head, tuple(book.unconfirmed)))
        if tracker.is_decided() or tracker.try_to_seal(stage) is None:
            raise RuntimeError(f"batch {batch} was not sealed")
        book.refresh()
        if batch == 1:
            book.staging.confirm(1)
            book.commit(1)
    return {"committed": 1, "sealed": {"1": ["staged-1", "staged-2"], "2": ["staged-3", "staged-4", "staged-5"]}}


async def write_journal(folder: Path) -> list[dict[str, Any]]:
    """Leave the record of one task."""
    rows = [
        JournalRow(MOVED, "q/0", 1_000, number, f"moved-{number}", "orders", 20, 5, None, 7, "run-1-0-0-abcd", None)
        for number in (1, 2)
    ]
    journal = Journal(Location(folder).new_record("run-1-0-0-abcd", 0.0))
    await journal.append(encode_rows(rows))
    await journal.close()
    return [row._asdict() for row in rows]


if __name__ == "__main__":
    sys.exit(main())
