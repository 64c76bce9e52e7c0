"""Whose messages the local spool holds, when pairing fails, is cleared, or the process forks: they always get out."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from pairbus import sdk
from pairbus.send_errors import SecondaryUnreachable
from pairbus.spool import Entry, Spool, spools_in
from pairbus.testing.script import Reject
from tests.client.messages import id_of
from tests.client.world import Stage, message, new_client, until
from tests.sdk.flavours import Flavour


def leave_in(folder: Path, message_id: str) -> None:
    """What a client that died has left behind."""
    spool = Spool(folder)
    entry = Entry(
        "orders", sdk.encode(message(message_id=message_id)), message_id, spooled_ms=time.time_ns() // 1_000_000
    )
    spool.append([entry])
    spool.close()


async def test_pairing_that_failed_and_is_repeated_keeps_its_spool(
    stage: Stage, flavour: Flavour, tmp_path: Path
) -> None:
    """A second one would leave what is in the first to nobody, for as long as the process lives."""
    await stage.secondary.stop()
    ends = stage.primary.connection_string, stage.secondary.connection_string
    client = new_client(flavour, *ends, spool_dir=tmp_path / "spool")
    for _ in range(2):
        with pytest.raises(SecondaryUnreachable):
            await client.pair()
    assert spools_in(tmp_path / "spool") == [tmp_path / "spool"]
    await client.close()
    Spool(tmp_path / "spool").close()  # nobody holds it any more


async def test_a_client_whose_pairing_is_cleared_spools_nothing(stage: Stage, flavour: Flavour, tmp_path: Path) -> None:
    """A plain client forwards nothing either: what queued behind the spool would never leave."""
    leave_in(tmp_path, "left")
    rule = stage.primary.on("attach", Reject("amqp:not-found"), path="orders")
    client = stage.client(flavour, spool_dir=tmp_path)
    await client.pair()
    await client.clear_pairing()
    stage.primary.remove(rule)
    await client.sender("orders").send(message(message_id="plain"))
    assert [id_of(payload) for payload in stage.primary.stored("orders")] == ["plain"]
    await client.close()
    spool = Spool(tmp_path)
    assert spool.waiting == 1
    spool.close()


WORKER = """
import os, sys, time
from azure.servicebus import ServiceBusMessage
from pairbus import PairedServiceBusClient
primary, secondary, folder = sys.argv[1:]
client = PairedServiceBusClient.from_connection_strings(
    primary, secondary, primary_name="stage", create_backlog_queues=False, spool_dir=folder
)
client.pair()
sender = client.get_queue_sender("orders")
child = os.fork()
if child == 0:
    sender.send_messages(ServiceBusMessage("x", message_id="new"), timeout=10)
    deadline = time.monotonic() + 20
    while client._hub.spool.waiting and time.monotonic() < deadline:
        time.sleep(0.05)
    os._exit(0)
os.waitpid(child, 0)
client.close()
"""


async def test_a_forked_worker_forwards_what_the_one_before_it_left(stage: Stage, tmp_path: Path) -> None:
    """It adopts a spool with messages in it: its sends queue behind them, so they have to go."""
    Spool(tmp_path).close()
    leave_in(tmp_path / "1", "left")
    ends = stage.primary.connection_string, stage.secondary.connection_string
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, *ends, str(tmp_path))
    try:
        await until(lambda: len(stage.primary.stored("orders")) == 2, "both are at home", within_s=15)
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
    assert [id_of(payload) for payload in stage.primary.stored("orders")] == ["left", "new"]


async def test_a_forked_worker_has_a_spool_where_the_next_process_looks(stage: Stage, tmp_path: Path) -> None:
    """Its parent has the first one within the folder. Within that one nobody would ever look again."""
    first = Spool(tmp_path)
    ends = stage.primary.connection_string, stage.secondary.connection_string
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, *ends, str(tmp_path))
    try:
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
    first.close()
    assert spools_in(tmp_path) == [tmp_path, tmp_path / "1", tmp_path / "2"]
