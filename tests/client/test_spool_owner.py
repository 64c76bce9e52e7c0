"""Owners of the local spool when pairing fails, is cleared, or the process forks: messages always get out."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from pairbus.client import life
from pairbus.client.errors import SecondaryUnreachable, SendAvailabilityBacklogError
from pairbus.sdk.encoding import encode
from pairbus.spool import Spool, SpoolEntry, spools_in
from tests.client.messages import id_of
from tests.client.world import Stage, message, new_client, until
from tests.scripted.script import Reject
from tests.sdk.flavours import Flavour


def leave_in(folder: Path, message_id: str) -> None:
    """Leave one message in a spool, as a client does that died."""
    spool = Spool(folder)
    entry = SpoolEntry(
        "orders", encode(message(message_id=message_id)), message_id, spooled_ms=time.time_ns() // 1_000_000
    )
    spool.append([entry])
    spool.close()


async def test_pairing_that_failed_and_is_repeated_keeps_its_spool(
    stage: Stage, flavour: Flavour, tmp_path: Path
) -> None:
    """A second spool would leave the messages of the first without an owner, for as long as the process lives."""
    await stage.secondary.stop()
    ends = stage.primary.connection_string, stage.secondary.connection_string
    client = new_client(flavour, *ends, spool_dir=tmp_path / "spool")
    for _ in range(2):
        with pytest.raises(SecondaryUnreachable):
            await client.pair()
    assert spools_in(tmp_path / "spool") == [tmp_path / "spool"]
    await client.close()
    Spool(tmp_path / "spool").close()  # can be opened, because no client has it any more


async def test_messages_of_an_earlier_client_in_the_spool_are_counted(
    stage: Stage, flavour: Flavour, tmp_path: Path
) -> None:
    """An operator who is paged after a restart asks the counters how many messages still wait."""
    leave_in(tmp_path, "first")
    leave_in(tmp_path, "second")
    for endpoint in (stage.primary, stage.secondary):
        endpoint.on("open", Reject("amqp:internal-error"))
    client = stage.client(flavour, spool_dir=tmp_path)
    await client.pair()
    assert client.client.counters["spool_depth"] == 2
    await client.close()
    assert client.client.counters["spool_depth"] == 2, "the messages stay for the next client"
    stage.primary.heal()
    heir = stage.client(flavour, spool_dir=tmp_path)
    await heir.pair()
    await until(lambda: heir.client.counters["spool_depth"] == 0, "all of it is forwarded", within_s=20)
    assert len(stage.primary.stored("orders")) == 2


async def test_a_client_whose_pairing_is_cleared_spools_nothing(stage: Stage, flavour: Flavour, tmp_path: Path) -> None:
    """A plain client does not forward a spool, so messages that queue behind it would never leave."""
    leave_in(tmp_path, "left")
    rule = stage.primary.on("attach", Reject("amqp:not-found"), path="orders")
    client = stage.client(flavour, spool_dir=tmp_path)
    await client.pair()
    await client.clear_pairing()
    stage.primary.remove(rule)
    try:
        await client.sender("orders").send(message(message_id="plain"))
    except MessagingEntityNotFoundError:  # answers an attach that the forwarder began while the rule was on
        await client.sender("orders").send(message(message_id="plain"))
    assert [id_of(payload) for payload in stage.primary.stored("orders")] == ["plain"]
    spool = Spool(tmp_path)  # can be opened, because no client has it any more
    assert spool.waiting == 1
    spool.close()
    await client.close()


@pytest.mark.parametrize("comes", ["before", "after"])
async def test_send_that_spools_during_clear_pairing_learns_its_outcome(
    stage: Stage, flavour: Flavour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    """A message that is being stored stays stored; a later one is refused, and its caller still has it."""
    for endpoint in (stage.primary, stage.secondary):
        endpoint.on("open", Reject("amqp:internal-error"))
    client = stage.client(flavour, spool_dir=tmp_path)
    await client.pair()
    reached, go_on = threading.Event(), threading.Event()
    append = Spool.append

    def slowly(spool: Spool, entries: list[SpoolEntry]) -> int:
        if comes == "before":
            waiting = append(spool, entries)
        reached.set()
        assert go_on.wait(20)
        return waiting if comes == "before" else append(spool, entries)

    monkeypatch.setattr(Spool, "append", slowly)
    sender = client.sender("orders")
    send = sender.send if comes == "before" else sender.error
    sending = asyncio.create_task(send(message(message_id="m"), timeout=5))
    assert await asyncio.to_thread(reached.wait, 20)
    await client.clear_pairing()
    go_on.set()
    told = await sending
    spool = Spool(tmp_path)
    assert spool.waiting == (1 if comes == "before" else 0)
    assert comes == "before" or isinstance(told, SendAvailabilityBacklogError)
    spool.close()


async def test_pairs_that_share_a_folder_do_not_forward_each_others_messages(
    stage: Stage, flavour: Flavour, tmp_path: Path
) -> None:
    """Whichever starts first: the messages would go to a namespace that they were never meant for."""
    spool = Spool(tmp_path, pair="litware")
    entry = SpoolEntry("orders", encode(message(message_id="theirs")), "theirs", spooled_ms=time.time_ns() // 1_000_000)
    spool.append([entry])
    spool.close()
    leave_in(tmp_path / "1", "left")
    client = stage.client(flavour, spool_dir=tmp_path)
    await client.pair()
    await until(lambda: len(stage.primary.stored("orders")) == 1, "forwarded")
    assert [id_of(payload) for payload in stage.primary.stored("orders")] == ["left"]
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
if os.path.exists(folder + "-left"):  # a client that has messages to adopt would adopt them before the fork
    os.rename(folder + "-left", folder + "/1")
child = os.fork()
if child == 0:
    sender.send_messages(ServiceBusMessage("x", message_id="new"), timeout=10)
    deadline = time.monotonic() + 20
    while client._state.spool.waiting and time.monotonic() < deadline:
        time.sleep(0.05)
    os._exit(0)
os.waitpid(child, 0)
client.close()
"""


async def run(program: str, stage: Stage, folder: Path) -> str:
    """Run the program, which must end with exit code 0, and return its output."""
    ends = stage.primary.connection_string, stage.secondary.connection_string
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *ends, str(folder)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(), 40)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def test_forked_worker_forwards_the_spool_of_its_predecessor(stage: Stage, tmp_path: Path) -> None:
    """The worker adopts a spool with messages in it: its own sends queue behind them, so the spool must be
    forwarded.
    """
    leave_in(tmp_path / "spool-left", "left")
    await run(WORKER, stage, tmp_path / "spool")
    assert [id_of(payload) for payload in stage.primary.stored("orders")] == ["left", "new"]


async def test_a_forked_worker_has_a_spool_where_the_next_process_looks(stage: Stage, tmp_path: Path) -> None:
    """The parent has the first spool of the folder. No process would ever look for a spool within that spool."""
    first = Spool(tmp_path)
    await run(WORKER, stage, tmp_path)
    first.close()
    assert spools_in(tmp_path) == [tmp_path, tmp_path / "1", tmp_path / "2"]


FORKS = """
import asyncio, os, sys
from pathlib import Path
from azure.servicebus import ServiceBusMessage
from pairbus.errors import SpoolError
from {module} import PairedServiceBusClient
primary, secondary, folder = sys.argv[1:]
client = PairedServiceBusClient.from_connection_strings(
    primary, secondary, primary_name="stage", create_backlog_queues=False, spool_dir=folder
)
sender = client.get_queue_sender("orders")
loop = asyncio.new_event_loop()

def carried_out(call):
    if call is not None:
        loop.run_until_complete(call)

def send(name):
    carried_out(sender.send_messages(ServiceBusMessage("x", message_id=name), timeout=10))

send("before")
{then}
carried_out(client.close())
"""
WITHOUT_ITS_SPOOL = """
obstacle = Path(folder, "1")
obstacle.write_text("in the way")
child = os.fork()
if child == 0:
    parents, loop = loop, asyncio.new_event_loop()
    try:
        send("refused")
    except SpoolError as error:
        print(error, flush=True)
    obstacle.unlink()
    send("child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
send("after")
"""
IDLE = """
os.rename(folder + "-left", folder + "/1")
ready, done = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.write(ready[1], b"x")
    os.read(done[0], 1)
    os._exit(0)
os.read(ready[0], 1)
from pairbus.spool import Spool
left = Spool(Path(folder, "1"))
print(left.waiting)
left.close()
os.write(done[1], b"x")
assert os.waitpid(child, 0)[1] == 0
"""
MODULES = {"sync": "pairbus", "aio": "pairbus.aio"}


async def test_worker_without_a_spool_raises_and_leaves_its_parent_alone(
    stage: Stage, flavour: Flavour, tmp_path: Path
) -> None:
    """The first send raises the error, as the first pairing would; the next send works when the folder is mended."""
    told = await run(FORKS.format(module=MODULES[flavour], then=WITHOUT_ITS_SPOOL), stage, tmp_path)
    assert f"The spool {tmp_path / '1'} cannot be opened: Not a directory." in told
    assert [id_of(payload) for payload in stage.primary.stored("orders")] == ["before", "child", "after"]
    before, child, after = [step.connection for step in stage.primary.steps if step.step == "transfer"]
    assert before == after != child


async def test_idle_worker_does_not_adopt_a_left_spool(stage: Stage, flavour: Flavour, tmp_path: Path) -> None:
    """An idle worker would hold messages that it does not forward before its own first send."""
    leave_in(tmp_path / "spool-left", "left")
    assert await run(FORKS.format(module=MODULES[flavour], then=IDLE), stage, tmp_path / "spool") == "1\n"


def test_after_a_fork_every_client_is_looked_after(caplog: pytest.LogCaptureFixture) -> None:
    """An error in one client must not stop the others: they would go on using the parent's sockets."""
    seen = []

    class Failing:
        def _after_fork(self) -> None:
            seen.append(self)
            raise OSError("no")

    failing = [Failing(), Failing()]
    for one in failing:
        life._clients.add(cast(Any, one))
    try:
        with caplog.at_level(logging.ERROR):
            life._after_fork()
    finally:
        for one in failing:
            life._clients.discard(cast(Any, one))
    assert len(seen) == 2 and len(caplog.records) == 2
