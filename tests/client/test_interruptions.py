"""Interruptions in the middle of a call: listeners that call the client, and signal handlers that raise."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pairbus.pairing.events import Event, Paired, Suspected
from pairbus.pairing.failover import State
from tests.client.world import Stage, World, message, new_client, until
from tests.scripted.script import Close, Silent
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow

LIMITED = """
import os, signal, sys, threading
from azure.servicebus import ServiceBusMessage
from pairbus import PairedServiceBusClient

class TimeLimit(Exception):
    pass

def over(number, frame):
    raise TimeLimit("soft limit")

primary, secondary, queue, broker = sys.argv[1:]
signal.signal(signal.SIGUSR1, over)
with PairedServiceBusClient.from_connection_strings(
    primary, secondary, failover_interval=0, primary_name=queue, backlog_queue_count=1
) as client:
    sender = client.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("first", message_id="first"))
    os.kill(int(broker), signal.SIGSTOP)  # the answer does not come
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        sender.send_messages(ServiceBusMessage("second", message_id="second"))
        print("sent")
    except Exception as error:
        print(type(error).__name__, error, client.states()[queue].value)
    finally:
        os.kill(int(broker), signal.SIGCONT)
"""


@pytest.mark.parametrize("call", ["pair", "close"])
async def test_who_hears_that_a_client_is_paired_may_call_it(world: World, flavour: Flavour, call: str) -> None:
    """Events are told when every lock is released: a listener that pairs or closes must not wait for itself."""
    heard = threading.Event()

    def on_event(event: Event) -> None:
        if not isinstance(event, Paired):
            return
        if flavour == "sync":
            getattr(client.client, call)()
        else:
            tasks.append(asyncio.ensure_future(getattr(client.client, call)()))
        heard.set()

    tasks: list[asyncio.Future[None]] = []
    ends = world.connection_string("primary"), world.connection_string("secondary")
    client = new_client(flavour, *ends, primary_name=world.primary_name, on_event=on_event)
    world.namespaces.backlog_made(world.backlog)
    await client.pair()
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert heard.is_set()
    await client.close()


async def test_time_limit_of_the_application_is_no_outage(world: World, tmp_path: Path) -> None:
    """A task queue's time limit is a signal handler that raises in the middle of a send. The plain SDK passes the
    exception on; another attempt, or a failover, would hide it.
    """
    queue = world.namespaces.make_queue()
    broker = world.namespaces.process("primary")
    arguments = [world.connection_string("primary"), world.connection_string("secondary"), queue]
    world.namespaces.backlog_made([f"{queue}/x-servicebus-transfer/0"])
    try:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", LIMITED, *arguments, str(broker.pid)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert done.stdout.strip() == "TimeLimit soft limit HEALTHY", done.stdout + done.stderr
    assert world.count(queue) == 2, "each was stored once"


async def test_listener_may_send_with_the_same_sender(stage: Stage) -> None:
    """A listener is called while no send has its turn; otherwise the listener's own send would wait for the send that
    waits for the listener."""
    sent: list[float] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Suspected):
            stage.primary.heal()
            began = time.monotonic()
            sender.sender.send_messages(message("from the listener"), timeout=10)
            sent.append(time.monotonic() - began)

    client = stage.client("sync", failover_interval=30, on_event=on_event)
    sender = client.sender("orders")
    await sender.send(message())
    stage.primary.on("transfer", Close("amqp:connection:forced"))
    await sender.error(message())
    assert sent and sent[0] < 5.0


class Interrupted(BaseException):
    """An interruption such as Ctrl-C."""


@pytest.mark.parametrize("timeout", [None, 5.0], ids=["usual", "with a time-out"])
async def test_interrupted_send_makes_no_further_attempt(stage: Stage, timeout: float | None) -> None:
    """The exception is raised unchanged; nothing is retried, diverted or spooled for that call after it."""
    client = stage.client("sync")
    sender = client.sender("orders")
    await sender.send(message())
    rule = stage.primary.on("transfer", Silent())
    ended: list[BaseException] = []

    def send() -> None:
        try:
            sender.sender.send_messages(message("interrupted"), timeout=timeout)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    await until(lambda: rule.hits, "the send waits for its answer")
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupted))
    await asyncio.to_thread(thread.join, 5.0)
    assert [type(error) for error in ended] == [Interrupted]
    stage.primary.heal()
    await sender.send(message("next"))
    assert stage.secondary.received == []
    assert client.state("orders") is State.HEALTHY


async def test_an_interrupted_close_is_completed_by_the_next_one(
    world: World, flavour: Flavour, tmp_path: Path
) -> None:
    """A time limit of the application must leave neither connections nor the lock of the spool behind."""
    queue = world.namespaces.make_queue()
    nemeses = world.nemesis(), world.nemesis("secondary")
    client = await world.client(flavour, spool_dir=tmp_path)
    sender = client.sender(queue)
    await sender.send(message())
    nemeses[0].stall_transfers(queue)
    sending = asyncio.create_task(sender.error(message()))
    await until(lambda: nemeses[0].counts.of(queue).transfers_held > 0, "closing has to wait for a send")
    if flavour == "aio":
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.client.close(), 0.1)
    else:
        ended: list[BaseException] = []

        def close() -> None:
            try:
                client.client.close()
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=close)
        thread.start()
        await until(lambda: client.client._state.is_closed, "closing has begun")
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupted))
        await asyncio.to_thread(thread.join, 5.0)
        assert [type(error) for error in ended] == [Interrupted]
    await client.close()
    await sending
    await until(lambda: not any(nemesis.open_connections for nemesis in nemeses), "every connection is closed")
    assert not client.client._state.spool.is_open
