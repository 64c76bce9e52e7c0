"""Memory in sum: many boxes, many clients, and clients that never read or never settle, with small budgets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Timestamp
from pairbus.broker import Broker, NamespaceOptions
from pairbus.broker.boxes.payloads import Payloads
from pairbus.broker.budget import MOVE_BYTES, READY_COST, MemoryBudget
from pairbus.broker.description import QueueDescription
from pairbus.broker.entities.entity import NamespaceParts
from pairbus.broker.entities.queue import Draft, Outcome, Queue
from pairbus.broker.namespace import Namespace
from pairbus.broker.refusal import Refusal
from pairbus.broker.store import UNLIMITED, Loaded, PutEntity, Update
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.wire.dispatch import Dispatcher
from pairbus.broker.wire.outlet import Outlet
from pairbus.transport import ClientConnection, ReceivedMessage, connect
from tests.broker.queue_world import Answer, World
from tests.crash import hostile
from tests.crash.hostile import Enemy
from tests.crash.messages import SCHEDULED_TIME

KB = 1 << 10
MB = 1 << 20
WAIT_S = 30.0


def encoded(message_id: str, size: int, *, due_ms: int = 0) -> bytes:
    annotations = {SCHEDULED_TIME: Timestamp(due_ms)} if due_ms else None
    return Message(annotations=annotations, properties=Properties(message_id=message_id), data=[bytes(size)]).encode()


# ── boxes ──


def queues_with(budget: MemoryBudget, count: int, store: MemoryStore) -> list[Queue]:
    queues = []
    for number in range(1, count + 1):
        description = QueueDescription(f"q{number}", lock_duration_ms=60_000)
        store.write(PutEntity(number, description.to_json()))
        parts = NamespaceParts(store, Payloads(), budget, lambda queue, box: None)
        queues.append(Queue(number, description, parts, now_ms=1))
    store.commit()
    return queues


def test_loaded_messages_of_many_queues_share_one_limit() -> None:
    """A thousand queues with a megabyte each would be a gigabyte; all messages are received all the same."""
    budget, store = MemoryBudget(), MemoryStore()
    budget.ready.limit = 200 * KB
    queues = queues_with(budget, 40, store)
    for queue in queues:
        queue.send([Draft(b"%d" % n + bytes(KB)) for n in range(100)], 1, Answer())
        store.commit()
    assert budget.ready.used <= budget.ready.limit + 100 * (KB + READY_COST)
    for turn in range(10):
        for queue in queues:
            found: list[bytes] = []
            while len(found) < 10:
                found += [lock.message.body for lock in queue.main.lock_next(10 - len(found), 1)]
            assert [int(body.rstrip(b"\0")) for body in found] == list(range(10 * turn, 10 * turn + 10))
        assert budget.ready.used <= budget.ready.limit + 100 * (KB + READY_COST)
    assert budget.index.used > 0


def test_read_for_a_receiver_ends_at_a_megabyte_whatever_comes() -> None:
    """20 000 small messages stand before 50 of 400 KB: the mean says that 256 of them make a megabyte."""
    world = World(max_message_size_kb=1024)
    for _ in range(20):
        world.offer(*[b"x"] * 1_000)
    world.offer(*[b"y" * 400_000] * 50)
    world.store.commit()
    world.restart()
    reads: list[int] = []
    load = world.store.load

    def watched(box: int, numbers: Sequence[int], size_max: int = UNLIMITED, *, with_bodies: bool = True) -> Loaded:
        loaded = load(box, numbers, size_max, with_bodies=with_bodies)
        reads.append(sum([len(message.body) for message in loaded.messages]))
        return loaded

    world.store.load = watched  # type: ignore[method-assign]
    assert len(world.bodies()) == 20_050
    assert max(reads) < MB + 400_000
    reads.clear()
    assert len(world.queue.peek(world.queue.main, 1, 250, world.now, size_max=MB)) == 250
    assert len(world.queue.peek(world.queue.main, 19_990, 250, world.now, size_max=MB)) < 20
    assert max(reads) < MB + 400_000


def test_locks_that_end_together_are_written_in_small_steps() -> None:
    """Each end of a lock writes the message again: 2 000 of 256 KB would be one commit of 512 MB."""
    world = World(lock_duration_ms=5_000)
    for _ in range(40):
        world.send(bytes(256 * KB))
    assert len(world.bodies()) == 40
    world.now += 5_000
    commits = 0
    while world.queue.next_due_ms() is not None and commits < 100:
        world.queue.run_due(world.now)
        moved = sum([op.message.size for op in world.store._writes if isinstance(op, Update)])
        assert moved <= MOVE_BYTES
        commits += moved > 0
        world.store.commit()
        if moved == 0:
            break
    assert commits == 40 * 256 * KB // MOVE_BYTES
    assert len(world.bodies()) == 40


def test_scheduled_messages_become_active_without_their_bodies() -> None:
    """A move needs no body, and few large messages are moved in one commit."""
    world = World(max_message_size_kb=10_240)
    for number in range(8):
        world.schedule(b"%d" % number + bytes(MB - 1), at=world.now + 100)
    load = world.store.load

    def without_bodies(
        box: int, numbers: Sequence[int], size_max: int = UNLIMITED, *, with_bodies: bool = True
    ) -> Loaded:
        assert not with_bodies and len(numbers) <= MOVE_BYTES // MB
        return load(box, numbers, size_max, with_bodies=with_bodies)

    world.store.load = without_bodies  # type: ignore[method-assign]
    world.pass_ms(100)
    world.store.load = load  # type: ignore[method-assign]
    assert [body[:1] for body in world.bodies()] == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("outcome", [Outcome.ABANDON, Outcome.DEFER, Outcome.DEAD_LETTER, Outcome.RELEASE])
def test_message_without_its_body_is_settled_whole(outcome: Outcome) -> None:
    """A lock keeps no body: the store has it, and gives it to the next receiver."""
    world = World()
    world.send(b"precious")
    lock = world.lock()
    lock.message.drop_body()
    size = world.queue.size_bytes
    world.settled(lock, outcome)
    assert world.queue.size_bytes >= size
    if outcome is Outcome.DEFER:
        answer = world.receive_deferred(1)
        world.store.commit()
        assert [each.message.body for each in answer.value] == [b"precious"]
    else:
        assert world.bodies(world.queue.dead if outcome is Outcome.DEAD_LETTER else None) == [b"precious"]


def test_full_index_refuses_sends_and_lets_receivers_go_on() -> None:
    """Scheduled messages and remembered ids count: up to seven days of them are in memory."""
    world = World(requires_duplicate_detection=True, duplicate_window_ms=60_000)
    budget = world.queue.budget
    budget.index.limit = 20_000
    sent = 0
    with pytest.raises(Refusal, match="takes no messages now"):
        while sent < 100:
            world.send(b"x", message_id=f"m{sent}")
            world.schedule(b"x", at=world.now + 1_000_000, message_id=f"s{sent}")
            sent += 1
    assert 10 < sent < 40
    assert len(world.bodies()) in {sent, sent + 1}
    world.pass_ms(60_000)
    world.pass_ms(60_000)
    world.send(b"there is room again", message_id="new")


# ── clients ──


@dataclass
class Served:
    namespace: Namespace
    budget: MemoryBudget
    connection: ClientConnection
    other: ClientConnection
    enemy: Enemy


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    queue = QueueDescription("q", max_message_size_kb=1024, lock_duration_ms=60_000)
    async with Broker([NamespaceOptions("contoso", queues=(queue,))], data=None) as broker:
        text = broker.connection_string("contoso")
        parts = dict(part.split("=", 1) for part in text.split(";"))
        port = int(parts["Endpoint"].rpartition(":")[2])
        enemy = Enemy(port, parts["SharedAccessKeyName"], parts["SharedAccessKey"], "q")
        async with await connect(text) as one, await connect(text) as other:
            namespace = broker.namespace("contoso")
            yield Served(namespace, namespace.budget, one, other, enemy)


async def until(met: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not met():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


async def test_delivered_messages_are_locked_without_their_bodies(served: Served) -> None:
    """2 000 messages of 256 KB under lock are half a gigabyte in the store, and nothing in memory."""
    sender = await served.connection.sender("q")
    for number in range(20):
        await sender.send(encoded(f"m{number}", 200_000))
    receiver = await served.connection.receiver("q", credit=20)
    received: list[ReceivedMessage] = []
    while len(received) < 20:
        received += await receiver.receive(20, timeout_s=WAIT_S)
    queue = served.namespace.queue("q")
    assert queue is not None
    assert [lock.message.body for lock in queue.main.locks] == [b""] * 20
    assert served.budget.locked.used > 0
    await receiver.complete(received)
    await until(lambda: served.budget.locked.used == 0)


@pytest.mark.parametrize("receivers", [1, 3])
async def test_large_messages_are_handed_out_in_turns_of_two_megabytes(
    served: Served, monkeypatch: pytest.MonkeyPatch, receivers: int
) -> None:
    """Other clients are served between the turns: a turn counts bytes, not messages alone."""
    handed: list[int] = []
    hand_out = Dispatcher._hand_out

    def watched(dispatcher: Dispatcher) -> None:
        before = len(dispatcher.box.locks)
        hand_out(dispatcher)
        handed.append(len(dispatcher.box.locks) - before)

    monkeypatch.setattr(Dispatcher, "_hand_out", watched)
    sender = await served.connection.sender("q")
    for number in range(40):
        await sender.send(encoded(f"m{number}", 200_000))
    links = [await served.connection.receiver("q", credit=40) for _ in range(receivers)]
    while sum(handed) < 40:
        await asyncio.gather(*[link.receive(40, timeout_s=1) for link in links])
    assert max(handed) * 200_000 <= 2 * MB + 200_000


async def test_client_that_never_settles_leaves_messages_to_others(served: Served) -> None:
    """It gets half of what locks may take, and more when it settles; another client is served at once."""
    served.budget.locked.limit = 200_000
    sender = await served.connection.sender("q")
    for _ in range(5):
        await sender.send_batch([encoded("m", 10) for _ in range(200)])
    greedy = await served.connection.receiver("q", credit=1_000)
    kept = await greedy.receive(1_000, timeout_s=WAIT_S)
    while more := await greedy.receive(1_000, timeout_s=0.2):
        kept += more
    assert 50 < len(kept) < 400
    honest = await served.other.receiver("q", credit=20)
    got = 0
    while got < 300:
        received = await honest.receive(20, timeout_s=WAIT_S)
        assert received
        await honest.complete(received)
        got += len(received)
    await greedy.complete(kept)
    assert await greedy.receive(10, timeout_s=WAIT_S)


async def test_requests_are_refused_while_their_answers_wait_for_credit(served: Served) -> None:
    """256 answers of a megabyte on one link were 230 MB."""
    sender = await served.connection.sender("q")
    for number in range(10):
        await sender.send(encoded(f"m{number}", 200_000))
    stop = asyncio.Event()
    asking = asyncio.create_task(hostile.peek_and_never_read(served.enemy, 100, stop, credit_of=0))
    peers = served.namespace.peers
    await until(lambda: any(peer.answer_bytes > MB for peer in peers))
    management = await served.connection.management("q")
    assert len(await management.peek(1, 3)) == 3
    assert max(peer.answer_bytes for peer in peers) < 4 * MB
    stop.set()
    await asking
    await until(lambda: served.budget.leaving.used == 0)


async def test_client_that_reads_nothing_for_longest_is_cut(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """When unread bytes of all clients are too many, one of them goes; those that read stay."""
    served.budget.leaving.limit = 3 * MB
    sender = await served.connection.sender("q")
    for number in range(10):
        await sender.send(encoded(f"m{number}", 200_000))
    stop = asyncio.Event()
    asking = [asyncio.create_task(hostile.peek_and_never_read(served.enemy, 100, stop)) for _ in range(8)]
    await until(lambda: "does not read" in caplog.text)
    await sender.send(encoded("last", 10))
    stop.set()
    await asyncio.gather(*asking)
    await until(lambda: served.budget.leaving.used == 0)


async def test_unfinished_messages_of_many_clients_have_one_limit(served: Served) -> None:
    """Each connection may begin messages of 128 MB; the one that stood still longest is closed."""
    served.budget.unfinished.limit = 2 * MB
    endless = hostile.endless_message(served.enemy, 1)
    words = [served.enemy.hello(), *endless[:13]]

    async def begin() -> bytes:
        async with served.enemy.dialled() as (reader, writer):
            writer.write(b"".join(words))
            said = b""
            async with asyncio.timeout(WAIT_S):
                while data := await reader.read(1 << 16):
                    said += data
                    if b"unfinished messages" in said:
                        break
            return said

    tasks = [asyncio.create_task(begin()) for _ in range(4)]
    done, pending = await asyncio.wait(tasks, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    assert done and b"unfinished messages" in done.pop().result()
    sender = await served.connection.sender("q")
    await sender.send(encoded("honest", 10))
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    await until(lambda: served.budget.unfinished.used == 0)


async def test_outlets_return_everything_at_their_end(served: Served) -> None:
    """A client that leaves without a word holds nothing but its locks, until they end."""
    sender = await served.connection.sender("q")
    await sender.send_batch([encoded("m", 10) for _ in range(100)])
    receiver = await served.other.receiver("q", credit=100)
    assert await receiver.receive(100, timeout_s=WAIT_S)
    [outlet] = [link.context for link in served.namespace.links if isinstance(link.context, Outlet)]
    await served.other.close()
    await until(lambda: outlet._unsettled_count == 0)
    queue = served.namespace.queue("q")
    assert queue is not None
    assert served.budget.locked.used == sum(lock.cost for lock in queue.main.locks)
