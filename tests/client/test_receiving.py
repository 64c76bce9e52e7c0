"""Our receivers as an application uses them: pings, iteration, locks, sessions, interruptions, outages, the end."""

from __future__ import annotations

import asyncio
import gc
import inspect
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, AutoLockRenewer, ServiceBusReceiveMode, ServiceBusSession, aio
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    OperationTimeoutError,
    ServiceBusConnectionError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

import pairbus
import pairbus.aio
from azure import servicebus
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Long, Symbol
from pairbus.cli.pair.status_clients import ReceiverState, lines_of_receivers, receivers_of
from pairbus.client.receiving import aio as ours_aio
from pairbus.client.receiving import entity_receiver, trouble
from pairbus.client.receiving import sync as ours_sync
from pairbus.host.control.asking import ask
from pairbus.pairing import policy
from pairbus.pairing.events import ReceivingInterrupted, ReceivingResumed
from pairbus.pairing.pings import CONTENT_TYPE
from tests.client.forking import FORK_QUIETLY
from tests.client.world import Client, Stage, World, message, new_single, until
from tests.limits import slowness
from tests.scripted import Reject, Reply
from tests.scripted.script import StepName
from tests.sdk.flavours import Flavour, Guarded

WAIT_S = 10.0
SETTLEMENTS = ("complete_message", "abandon_message", "defer_message", "dead_letter_message")
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


@pytest.fixture
async def client(world: World, flavour: Flavour) -> AsyncIterator[Client]:
    client = new_single(flavour, world.connection_string("primary"))
    yield client
    await client.close()


@pytest.fixture
def nemesis(world: World) -> Any:
    """The proxy before the broker; it comes before `client` in the arguments of a test."""
    return world.nemesis()


def receiver_of(client: Client, queue: str, **options: Any) -> Any:
    """A receiver whose calls are awaited in both flavours."""
    return Guarded(client.client.get_queue_receiver(queue, **options), client.flavour)


async def taken(receiver: Any, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        found += await receiver.receive_messages(count - len(found), WAIT_S)
    return found


def texts(messages: list[Any]) -> list[str]:
    return [str(each) for each in messages]


# ── the surface ──


PAIRS: tuple[tuple[type, type], ...] = (
    (servicebus.ServiceBusReceiver, ours_sync.ServiceBusReceiver),
    (aio.ServiceBusReceiver, ours_aio.ServiceBusReceiver),
    (servicebus.ServiceBusSession, ours_sync.ServiceBusSession),
    (aio.ServiceBusSession, ours_aio.ServiceBusSession),
)


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_every_public_name_of_the_sdk_is_there_with_its_arguments(theirs: type, ours: type) -> None:
    instances = {"client_identifier", "entity_path", "fully_qualified_namespace"}
    for name, method in inspect.getmembers(theirs):
        if name.startswith("_") or name in instances:
            continue
        assert hasattr(ours, name), name
        if callable(method):
            wanted = [(each.name, each.kind, each.default) for each in inspect.signature(method).parameters.values()]
            found = inspect.signature(getattr(ours, name)).parameters.values()
            assert [(each.name, each.kind, each.default) for each in found] == wanted, name
            assert inspect.iscoroutinefunction(getattr(ours, name)) is inspect.iscoroutinefunction(method), name


# ── pings ──


def numbered(body: str, number: int, content_type: str | None = None) -> bytes:
    """An encoded message with its sequence number."""
    return Message(
        annotations={Symbol("x-opt-sequence-number"): Long(number)},
        properties=Properties(message_id=body, content_type=content_type),
        data=[body.encode()],
    ).encode()


def encoded(body: str, content_type: str | None = None) -> bytes:
    return numbered(body, 1, content_type)


PING = encoded("ping", CONTENT_TYPE)


@pytest.fixture
async def pinged(stage: Stage, flavour: Flavour) -> Client:
    """A client of a namespace that does not hide pings."""
    stage.primary.hides_pings = False
    stage.primary.put("orders", PING, PING, encoded("a"), PING, encoded("b"))
    return stage.single(flavour)


async def test_ping_among_messages_is_completed_and_not_handed_out(stage: Stage, pinged: Client) -> None:
    receiver = receiver_of(pinged, "orders")
    found = await receiver.receive_messages(10, 5)
    assert texts(found) == ["a", "b"]
    await until(lambda: stage.primary.settlements.count(("orders", "accepted")) == 3, "the pings were completed")


async def test_receive_goes_on_waiting_when_only_pings_came(stage: Stage, flavour: Flavour) -> None:
    """Pings make no queue look empty, and no call longer."""
    stage.primary.hides_pings = False
    stage.primary.put("orders", PING, PING)
    receiver = receiver_of(stage.single(flavour), "orders")
    began = time.monotonic()
    assert await receiver.receive_messages(10, 1.0) == []
    assert 0.9 < time.monotonic() - began < 3.0 * slowness()


async def test_iterating_skips_pings(pinged: Client) -> None:
    assert texts(await receiver_of(pinged, "orders", max_wait_time=5).first(2)) == ["a", "b"]


async def test_peeking_looks_behind_pings(stage: Stage, flavour: Flavour) -> None:
    """An empty answer would mean that there is nothing more to browse."""
    pages = [[numbered("ping", 3, CONTENT_TYPE), numbered("ping", 4, CONTENT_TYPE)], [numbered("a", 5)]]
    for page in pages:
        answer = Reply(200, {"messages": [{"message": each} for each in page]})
        stage.primary.on("request", answer, path="orders", times=1)
    found = await receiver_of(stage.single(flavour), "orders").peek_messages(2)
    assert texts(found) == ["a"]
    assert [body["from-sequence-number"] for _, _, body in stage.primary.requests] == [1, 5]


async def test_deleted_ping_is_gone(stage: Stage, pinged: Client) -> None:
    receiver = receiver_of(pinged, "orders", receive_mode=DELETE)
    assert texts(await receiver.receive_messages(10, 5)) == ["a", "b"]
    assert stage.primary.settlements == []


# ── iterating ──


async def test_iteration_without_a_wait_time_ends_when_the_receiver_is_closed(world: World, client: Client) -> None:
    queue = world.namespaces.make_queue()
    receiver = receiver_of(client, queue)
    await client.sender(queue).send(message("a"))
    iterating = asyncio.create_task(receiver.first(2))
    await until(lambda: receiver._present.receiver is not None and receiver._last_sequence_number, "the first has come")
    assert not iterating.done()
    await receiver.close()
    assert texts(await iterating) == ["a"]


async def test_iteration_outlives_an_outage(world: World, nemesis: Any, client: Client) -> None:
    """One event and one end of it, whatever number of receivers an entity has, and the reason in `repr`."""
    queue = world.namespaces.make_queue()
    receivers = [receiver_of(client, queue) for _ in range(3)]
    iterating = [asyncio.create_task(receiver.first(1)) for receiver in receivers]
    await until(
        lambda: all(one._present.receiver and one._present.receiver.is_open for one in receivers), "all are open"
    )
    nemesis.refuse()
    await client.until_event(ReceivingInterrupted, 5)
    await until(lambda: all("interrupted: no connection" in repr(one._target) for one in receivers), "repr says why")
    nemesis.heal()
    await client.until_event(ReceivingResumed, 20)
    plain = new_single(client.flavour, world.namespaces.connection_string("primary"))
    await plain.sender(queue).send([message(body) for body in "abc"])
    await plain.close()
    assert sorted(text for found in await asyncio.gather(*iterating) for text in texts(found)) == ["a", "b", "c"]
    assert len(client.told(ReceivingInterrupted)) == len(client.told(ReceivingResumed)) == 1


async def test_receive_raises_the_trouble_that_lasts(world: World, nemesis: Any, client: Client) -> None:
    """Nothing would mean that the queue is empty."""
    nemesis.refuse()
    with pytest.raises(ServiceBusConnectionError):
        await receiver_of(client, "orders").receive_messages(1, 0.7)


# ── locks ──


@pytest.mark.slow
async def test_locks_are_renewed_by_the_sdks_renewer(world: World, client: Client) -> None:
    """A message and a session are held for longer than one lock lasts."""
    lock = timedelta(seconds=3)
    plain = world.namespaces.make_queue(lock_duration=lock)
    sessions = world.namespaces.make_queue(lock_duration=lock, requires_session=True)
    await client.sender(plain).send(message("a"))
    await client.sender(sessions).send(message("b", session_id="s"))
    renewer: Any = aio.AutoLockRenewer() if client.flavour == "aio" else AutoLockRenewer()
    one = receiver_of(client, plain, auto_lock_renewer=renewer)
    other = receiver_of(client, sessions, session_id=NEXT_AVAILABLE_SESSION, auto_lock_renewer=renewer)
    [first], [second] = await asyncio.gather(taken(one, 1), taken(other, 1))
    await asyncio.sleep(4.0)
    assert first.auto_renew_error is None and other.session.auto_renew_error is None
    await one.complete_message(first)
    await other.complete_message(second)
    closing = renewer.close()
    if client.flavour == "aio":
        await closing
    assert world.count(plain) == world.count(sessions) == 0


@pytest.mark.parametrize("operation", [*SETTLEMENTS, "renew_message_lock"])
async def test_settlement_ends_on_a_silent_peer_and_the_receiver_lives_on(
    world: World, nemesis: Any, client: Client, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK would wait for a minute, or for ever."""
    assert entity_receiver.SETTLE_S < 30
    monkeypatch.setattr(entity_receiver, "SETTLE_S", 1.0)
    queue = world.namespaces.make_queue()
    receiver = receiver_of(client, queue)
    await client.sender(queue).send([message("a"), message("b")])
    [first] = await receiver.receive_messages(1, WAIT_S)
    nemesis.black_hole()
    options = {"timeout": 1.0} if operation == "renew_message_lock" else {}
    began = time.monotonic()
    with pytest.raises(OperationTimeoutError) as raised:
        await getattr(receiver, operation)(first, **options)
    assert 0.9 < time.monotonic() - began < 4.0 * slowness()
    if operation in SETTLEMENTS:
        assert raised.value.outcome_unknown  # type: ignore[attr-defined]
    nemesis.heal()
    monkeypatch.undo()
    [second] = await taken(receiver, 1)
    await receiver.complete_message(second)


async def test_status_tells_a_receiver_that_gets_no_messages(world: World, tmp_path_factory: Any) -> None:
    """Since when and why, through the control socket of the client."""
    socket = tmp_path_factory.mktemp("s") / "c.sock"
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client("aio", control_socket=socket)
    receiver = receiver_of(client, queue)

    async def seen() -> ReceiverState:
        _, facts = await asyncio.to_thread(ask, socket, "GET", "/", None, 10.0)
        (state,) = receivers_of([facts])
        return state

    await client.sender(queue).send([message("a")])
    await taken(receiver, 1)
    state = await seen()
    assert (state.path, state.count, state.outage) == (queue, 1, None)
    nemesis.refuse()
    call = asyncio.create_task(receiver.receive_messages(1, 60.0))
    await until(lambda: "interrupted: no connection" in repr(receiver._target), "the outage is noticed")
    state = await seen()
    assert state.outage is not None
    assert state.outage_s is not None and 0 <= state.outage_s < 60
    head, line = lines_of_receivers([state], 1e9)
    assert head == "receivers on this machine: 1; entities that give them no messages: 1"
    assert line.startswith(f"  {queue}: no messages since 2001-09-") and line.endswith(state.outage)
    nemesis.heal()
    await client.sender(queue).send([message("b")])
    assert await call
    assert (await seen()).outage is None
    await receiver.close()
    _, facts = await asyncio.to_thread(ask, socket, "GET", "/", None, 10.0)
    assert receivers_of([facts]) == ()


async def test_message_is_settled_through_another_receiver_also_after_pickling(world: World, client: Client) -> None:
    """By its lock: the link over which it came belongs to somebody else, perhaps in another process."""
    queue = world.namespaces.make_queue()
    await client.sender(queue).send([message("a"), message("b")])
    one, other = receiver_of(client, queue), receiver_of(client, queue)
    first, second = await taken(one, 2)
    await other.complete_message(first)
    await one.complete_message(pickle.loads(pickle.dumps(second)))
    assert world.count(queue) == 0


async def test_many_callers_settle_through_one_receiver(world: World, client: Client) -> None:
    """The plain SDK has one call of a receiver at a time; here each caller gets its own answer."""
    queue = world.namespaces.make_queue()
    await client.sender(queue).send([message(str(number)) for number in range(60)])
    receiver = receiver_of(client, queue)
    found = await taken(receiver, 60)
    await asyncio.gather(*(receiver.complete_message(each) for each in found[:58]))
    await receiver.complete_message(found[58])
    answers = await asyncio.gather(*(receiver.complete_message(each) for each in found[57:]), return_exceptions=True)
    assert [type(answer) for answer in answers] == [MessageAlreadySettled, MessageAlreadySettled, type(None)]
    assert world.count(queue) == 0


async def test_throttled_receiver_waits(stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as the service asks: ten seconds."""
    assert policy.BUSY_WAIT_S == 10
    monkeypatch.setattr(trouble, "BUSY_WAIT_S", 0.3)
    steps: tuple[StepName, ...] = ("attach", "settlement", "request")
    busy = Reject("com.microsoft:server-busy", "Slow down.")
    rules = [stage.primary.on(step, busy, path="orders", times=1) for step in steps]
    stage.primary.put("orders", encoded("a"))
    receiver = receiver_of(stage.single(flavour), "orders")
    began = time.monotonic()
    [found] = await receiver.receive_messages(1, WAIT_S)
    await receiver.complete_message(found)
    assert [rule.hits for rule in rules] == [1, 1, 1]
    assert time.monotonic() - began > 0.6


# ── nothing stays locked ──


async def test_forgotten_receiver_gives_back_what_it_fetched(world: World, client: Client) -> None:
    """And its client stays at work."""
    queue = world.namespaces.make_queue()
    await client.sender(queue).send([message(body) for body in "abc"])
    hoarder: Any = receiver_of(client, queue, prefetch_count=10)
    assert texts(await hoarder.receive_messages(1, WAIT_S)) == ["a"]
    del hoarder
    gc.collect()
    assert texts(await taken(receiver_of(client, queue), 2)) == ["b", "c"]


async def test_prefetched_messages_are_bounded_by_bytes(world: World, client: Client) -> None:
    """A queue of large messages must not fill the memory of a client; the others are there for other receivers."""
    queue = world.namespaces.make_queue()
    sender = client.sender(queue)
    for _ in range(20):
        await sender.send(message("x" * 100_000))
    hoarder = receiver_of(client, queue, prefetch_count=1000, prefetch_bytes=500_000)
    await hoarder.receive_messages(1, WAIT_S)
    assert len(await taken(receiver_of(client, queue), 14)) == 14


def test_interrupted_receive_leaves_nothing_locked(world: World) -> None:
    """The handler of a signal raises in the main thread while the call waits, or when a message is on its way."""
    queue = world.namespaces.make_queue()

    class Interrupted(Exception): ...

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name == "_receive":
                raise Interrupted
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pairbus.ServiceBusClient.from_connection_string(world.connection_string("primary")) as client:
            receiver, other = client.get_queue_receiver(queue), client.get_queue_receiver(queue)
            sender = client.get_queue_sender(queue)
            for number in range(20):
                sending = threading.Timer(0.02, lambda: sender.send_messages(message("x")))
                sending.start()
                found, taker = list[Any](), receiver
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.015 + number / 2000)
                    found = receiver.receive_messages(1, 20)
                except Interrupted:
                    found, taker = other.receive_messages(1, 20), other
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    sending.join()
                assert [each.delivery_count for each in found] == [0], f"attempt {number}"
                taker.complete_message(found[0])
    finally:
        signal.signal(signal.SIGALRM, before)


# ── sessions ──


async def test_session_has_id_state_and_lock(world: World, client: Client) -> None:
    queue = world.namespaces.make_queue(requires_session=True)
    await client.sender(queue).send(message("a", session_id="s1"))
    receiver = receiver_of(client, queue, session_id=NEXT_AVAILABLE_SESSION)
    session = Guarded(receiver.session, client.flavour)
    assert isinstance(receiver.session, aio.ServiceBusSession if client.flavour == "aio" else ServiceBusSession)
    await taken(receiver, 1)
    assert session.session_id == "s1"
    before = session.locked_until_utc
    assert await session.renew_lock() >= before
    await session.set_state("half")
    assert await session.get_state() == b"half"
    await session.set_state(None)
    assert await session.get_state() is None
    assert receiver_of(client, queue).session is None


async def test_session_of_another_receiver_is_told_at_once(world: World, client: Client) -> None:
    """The plain SDK tries again, for some seconds by default."""
    queue = world.namespaces.make_queue(requires_session=True)
    await receiver_of(client, queue, session_id="s1").open()
    began = time.monotonic()
    with pytest.raises(SessionCannotBeLockedError):
        await receiver_of(client, queue, session_id="s1").open()
    assert time.monotonic() - began < 2.0 * slowness()


async def test_lost_session_is_not_opened_again(world: World, nemesis: Any, client: Client) -> None:
    """Another receiver may work on it by then."""
    queue = world.namespaces.make_queue(requires_session=True)
    await client.sender(queue).send(message("a", session_id="s1"))
    receiver = receiver_of(client, queue, session_id="s1")
    [first] = await taken(receiver, 1)
    nemesis.cut()
    nemesis.heal()
    with pytest.raises((SessionLockLostError, OperationTimeoutError)):
        await receiver.complete_message(first)
    for call in (
        receiver.receive_messages,
        receiver.peek_messages,
        Guarded(receiver.session, client.flavour).get_state,
    ):
        with pytest.raises(SessionLockLostError):
            await call()


async def test_wait_for_a_session_ends_with_the_call_and_with_closing(world: World, client: Client) -> None:
    queue = world.namespaces.make_queue(requires_session=True)
    receiver = receiver_of(client, queue, session_id=NEXT_AVAILABLE_SESSION)
    began = time.monotonic()
    with pytest.raises(OperationTimeoutError, match="NEXT_AVAILABLE_SESSION"):
        await receiver.receive_messages(1, 0.5)
    opening = asyncio.create_task(receiver.open())
    await asyncio.sleep(0.3)
    await receiver.close()
    await asyncio.wait([opening])
    assert isinstance(opening.exception(), ServiceBusConnectionError | ValueError)
    assert time.monotonic() - began < 8.0 * slowness(), "closing does not wait for the minute that a session may take"


# ── the end ──


async def test_closed_receiver_says_so(world: World, client: Client) -> None:
    queue = world.namespaces.make_queue()
    await client.sender(queue).send(message("a"))
    receiver = receiver_of(client, queue)
    [first] = await taken(receiver, 1)
    await receiver.close()
    await receiver.close()
    calls: list[Callable[[], Any]] = [
        receiver.open,
        receiver.receive_messages,
        receiver.peek_messages,
        lambda: receiver.complete_message(first),
        lambda: receiver.renew_message_lock(first),
        lambda: receiver.receive_deferred_messages(1),
        lambda: receiver.first(1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="The handler has already been shutdown"):
            await call()
    assert "closed" in repr(receiver._target)


async def test_closing_the_client_gives_back_what_its_receivers_fetched(world: World, flavour: Flavour) -> None:
    queue = world.namespaces.make_queue()
    client = new_single(flavour, world.connection_string("primary"))
    await client.sender(queue).send([message(body) for body in "abc"])
    receiver = receiver_of(client, queue, prefetch_count=10)
    await taken(receiver, 1)
    await client.close()
    with pytest.raises(ValueError, match="already been shutdown"):
        await receiver.receive_messages()
    other = new_single(flavour, world.connection_string("primary"))
    assert texts(await taken(receiver_of(other, queue), 2)) == ["b", "c"]
    await other.close()


FORKS = """
import os, sys
from azure.servicebus import ServiceBusMessage
import pairbus

client = pairbus.ServiceBusClient.from_connection_string(sys.argv[1])
receiver = client.get_queue_receiver(sys.argv[2])
client.get_queue_sender(sys.argv[2]).send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
[first] = receiver.receive_messages(1, 10)
child = os.fork()
if child == 0:
    code = 1
    try:
        [second] = receiver.receive_messages(1, 10)
        receiver.complete_message(second)
        receiver.close()
        client.close()
        code = 0
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
receiver.complete_message(first)
assert receiver.receive_messages(1, 0.3) == []
client.close()
"""


@pytest.mark.slow
async def test_forked_child_receives_on_a_connection_of_its_own(world: World) -> None:
    """And the parent goes on; it may settle what it received before."""
    queue = world.namespaces.make_queue()
    program = [*FORK_QUIETLY, "-c", FORKS, world.connection_string("primary"), queue]
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, *program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert world.count(queue) == 0


async def test_asyncio_receiver_goes_on_in_the_next_event_loop(world: World) -> None:
    queue = world.namespaces.make_queue()
    client = pairbus.aio.ServiceBusClient.from_connection_string(world.connection_string("primary"))
    receiver = client.get_queue_receiver(queue)

    async def one() -> list[str]:
        await client.get_queue_sender(queue).send_messages(message("a"))
        [found] = await receiver.receive_messages(1, WAIT_S)
        await receiver.complete_message(found)
        return texts([found])

    for _ in range(2):
        assert await asyncio.to_thread(asyncio.run, one()) == ["a"]
    await asyncio.to_thread(asyncio.run, client.close())


async def test_receivers_share_one_connection(stage: Stage, flavour: Flavour) -> None:
    """Apart from the senders: a flood of deliveries delays no answer to a send."""
    client = stage.single(flavour)
    await client.sender("orders").send(message())
    await asyncio.gather(*(receiver_of(client, f"q-{number}").open() for number in range(5)))
    assert stage.primary.open_connections == 2
