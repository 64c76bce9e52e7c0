"""The sync client waits for an engine in a thread: interruptions, listeners, monkey patches, forks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pairbus.client.engine_thread import EngineThread
from pairbus.pairing.events import Closed, Diverted, Event, FailedOver, Paired
from pairbus.pairing.failover import State
from tests.client.forking import FORK_QUIETLY
from tests.client.messages import id_of
from tests.client.world import Stage, message, until
from tests.scripted import Reject, Silent

pytestmark = pytest.mark.slow

INTERRUPTED = """
import os, signal, sys, threading, time
from azure.servicebus import ServiceBusMessage
from pairbus import PairedServiceBusClient

how, primary, secondary, folder = sys.argv[1:]

class TimeLimit(Exception):
    pass

def over(number, frame):
    raise TimeLimit

if how == "limit":
    signal.signal(signal.SIGALRM, over)
else:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell inherits that it is ignored
client = PairedServiceBusClient.from_connection_strings(
    primary, secondary, primary_name="stage", create_backlog_queues=False, backlog_queue_count=2,
    failover_interval=0, ping_primary_interval=60, attempt_timeout=4, spool_dir=folder,
)
sender = client.get_queue_sender("orders")
sender.send_messages(ServiceBusMessage("first", message_id="first"))
print("ready", flush=True)
sys.stdin.readline()
interrupted_at = []

def interrupt():
    sys.stdin.readline()
    interrupted_at.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGALRM if how == "limit" else signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    sender.send_messages(ServiceBusMessage("interrupted", message_id="interrupted"))
    print("stored", flush=True)
except (TimeLimit, KeyboardInterrupt) as error:
    print(type(error).__name__, time.monotonic() - interrupted_at[0] < 2.5, flush=True)  # an attempt has 4 s
time.sleep(4)  # an attempt, a diversion or a write that went on would show by now
print(client.states()["orders"].value, client.counters["total"]["spooled"], flush=True)
client.close()
"""


@pytest.mark.parametrize("how", ["limit", "Ctrl-C"])
@pytest.mark.parametrize("where", ["primary", "backlog"])
async def test_an_interrupted_send_ends_there(stage: Stage, tmp_path: Path, how: str, where: str) -> None:
    """While the primary is silent, or a backlog queue: no new attempt, no diversion, no write to the spool."""
    ends = stage.primary.connection_string, stage.secondary.connection_string
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", INTERRUPTED, how, *ends, str(tmp_path)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 20) == b"ready\n"
    if where == "primary":
        stage.primary.on("transfer", Silent(), path="orders")
    else:
        stage.primary.on("transfer", Reject("amqp:resource-limit-exceeded"), path="orders", times=3)
        stage.secondary.on("transfer", Silent())
    process.stdin.write(b"\n")
    unanswered: Callable[[], object] = (
        (lambda: len(stage.primary.received_by("orders")) == 2)
        if where == "primary"
        else (lambda: stage.secondary.received)
    )
    await until(unanswered, "the send that is not answered", within_s=20.0)
    said, errors = await asyncio.wait_for(process.communicate(b"\n"), 30)
    first, second = said.decode().split("\n")[:2]
    assert first == f"{'TimeLimit' if how == 'limit' else 'KeyboardInterrupt'} True", errors.decode()
    assert second.endswith(" 0"), "nothing was spooled"
    tries = [id_of(each.payload) for each in stage.primary.received_by("orders") if not each.is_ping]
    if where == "primary":
        assert second == "HEALTHY 0"
        assert tries == ["first", "interrupted"]
        assert stage.secondary.received == []
    else:
        assert second == "FAILED_OVER 0"
        assert len(stage.secondary.received) == 1, "only one backlog queue was tried"
    assert stage.in_backlog() == []


async def test_calls_go_on_after_an_interruption_at_any_moment(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may come between noting a call and waking the engine for it: others must not wait for ever, and the
    interrupted call is not carried out when somebody else wakes the engine."""
    client = stage.client("sync")
    sender = client.sender("orders")
    await sender.send(message("first", message_id="first"))
    thread: EngineThread = client.client._life.thread
    wake = thread._loop.call_soon_threadsafe

    def interrupt(*_: Any) -> None:
        thread_loop.call_soon_threadsafe = wake
        raise KeyboardInterrupt

    class Loop:
        """The loop, whose first wake is where the signal comes."""

        call_soon_threadsafe: Any = staticmethod(interrupt)

        def __getattr__(self, name: str) -> Any:
            return getattr(loop, name)

    loop, thread_loop = thread._loop, Loop()
    monkeypatch.setattr(thread, "_loop", thread_loop)
    for call in ("send", "schedule"):
        thread_loop.call_soon_threadsafe = staticmethod(interrupt)
        caught: list[BaseException] = []

        def work(call: str = call, caught: list[BaseException] = caught) -> None:
            try:
                if call == "send":
                    sender.sender.send_messages(message(message_id="interrupted"))
                else:
                    client.client.force_failover("orders")
            except KeyboardInterrupt as error:
                caught.append(error)

        await asyncio.to_thread(work)
        assert len(caught) == 1
        assert await sender.send(message(message_id=f"after {call}")) < 5
    assert [id_of(payload) for payload in stage.primary.stored("orders")] == ["first", "after send", "after schedule"]
    assert client.state("orders") is State.HEALTHY


async def test_a_listener_has_its_own_thread_and_hears_in_order(stage: Stage) -> None:
    """A slow one holds up no send, and may call anything: send, look, close."""
    heard: list[tuple[type[Event], str]] = []
    closed, have_sent = threading.Event(), threading.Event()

    def on_event(event: Event) -> None:
        heard.append((type(event), threading.current_thread().name))
        if isinstance(event, FailedOver):
            have_sent.wait(20)
            assert client.client.states()["orders"] is State.FAILED_OVER
            client.client.get_queue_sender("invoices").send_messages(message("from the listener"), timeout=5)
        elif isinstance(event, Diverted) and event.count == 3:
            client.client.close()
            closed.set()

    client = stage.client("sync", on_event=on_event, ping_primary_interval=60)
    sender = client.sender("orders")
    await asyncio.to_thread(sender.sender.send_messages, message())
    stage.primary.on("transfer", Reject(), path="orders")
    began = time.monotonic()
    for _ in range(6):
        await asyncio.to_thread(sender.sender.send_messages, message())
    assert time.monotonic() - began < 19, "the sends did not wait for the listener"
    have_sent.set()
    await asyncio.to_thread(sender.sender.send_messages, [message() for _ in range(3)])
    assert await asyncio.to_thread(closed.wait, 15)
    await until(lambda: heard[-1][0] is Closed, "the last event")
    kinds = [kind for kind, _ in heard]
    assert kinds == [Paired, FailedOver, *[Diverted] * 7, Closed]
    assert {name for _, name in heard} == {"pairbus-events"}
    assert len(stage.primary.stored("invoices")) == 1


FORKED = """
import os, sys, threading, time
from azure.servicebus import ServiceBusMessage
from pairbus import PairedServiceBusClient

primary, secondary = sys.argv[1:]
client = PairedServiceBusClient.from_connection_strings(
    primary, secondary, primary_name="stage", create_backlog_queues=False, backlog_queue_count=2
)
sender = client.get_queue_sender("orders")
over = threading.Event()

def keep_sending():
    while not over.is_set():
        sender.send_messages(ServiceBusMessage("parent"), timeout=10)

threads = [threading.Thread(target=keep_sending) for _ in range(8)]
for thread in threads:
    thread.start()
time.sleep(0.3)
children = []
for number in range(5):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert client._life.thread is None, "the engine is built at the first call"
            for _ in range(20):
                sender.send_messages(ServiceBusMessage(f"child {number}"), timeout=10)
            client.close()
            code = 0
        finally:
            os._exit(code)
    children.append(child)
    time.sleep(0.05)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
over.set()
for thread in threads:
    thread.join()
client.close()
print(codes)
"""


async def test_children_that_are_forked_in_the_middle_of_traffic_send_for_themselves(stage: Stage) -> None:
    """Eight threads of the parent have sends in flight at each fork; nobody is confused by the other's answers."""
    ends = stage.primary.connection_string, stage.secondary.connection_string
    process = await asyncio.create_subprocess_exec(
        sys.executable, *FORK_QUIETLY, "-c", FORKED, *ends, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    said, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (said.decode().strip(), errors.decode(), process.returncode) == ("[0, 0, 0, 0, 0]", "", 0)
    bodies = [payload for payload in stage.primary.stored("orders") if b"child" in payload]
    assert len(bodies) == 100
    assert stage.secondary.received == []
