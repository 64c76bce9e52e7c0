"""Forwarding when commits fail or the broker is killed: a message is in one place, and only in one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from pairbus.amqp.errors import INTERNAL_ERROR
from pairbus.amqp.message import MESSAGE_ANNOTATIONS, sections
from pairbus.amqp.types import decode, encode_pair
from pairbus.auth.sas import KeyRing
from pairbus.broker.boxes.box import Box
from pairbus.broker.boxes.payloads import Payloads
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.entity import NamespaceParts
from pairbus.broker.entities.publication import SESSION_MISSING
from pairbus.broker.entities.queue import Outcome, Queue
from pairbus.broker.entities.sweep import Sweeper
from pairbus.broker.entities.topic import Topic
from pairbus.broker.forward import BATCH_BYTES, BATCH_MAX, HOPS_MAX, TOO_MANY_HOPS, BoxForwarder
from pairbus.broker.namespace import Namespace
from pairbus.broker.store import Delete, PutEntity, entity_of
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.broker.wire.deliveries import encode_delivery
from pairbus.broker.wire.messages import DEAD_LETTER_SOURCE, pair_spans
from pairbus.errors import StoreError
from tests.broker.locking import lock_next
from tests.broker.queue_world import DISK_FULL, Answer
from tests.broker.topic_world import TOPIC_ID, TopicWorld, draft, text_of
from tests.store.common import commit


class HandLoop:
    """Calls that were put off, made by hand."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def call_later(self, _: float, call: Callable[[], None]) -> HandLoop:
        self.later.append(call)
        return self

    def cancel(self) -> None:
        self.later.clear()


class Chain:
    """Queues `a`, `b`, … that forward each to the next by `forward_to`, or their dead letters."""

    def __init__(self, names: str = "ab", *, dead: bool = False, last: dict[str, Any] | None = None) -> None:
        self.now = 1_000_000
        self.store = MemoryStore()
        self.names = names
        self.dead = dead
        self.descriptions = {
            name: QueueDescription(name, **(last or {} if name == names[-1] else {"max_delivery_count": 1}))
            for name in names
        }
        for number, description in enumerate(self.descriptions.values(), 1):
            self.store.write(PutEntity(number, description.to_json()))
        self.store.commit()
        self._open({})

    def _open(self, last_seqs: dict[int, int]) -> None:
        self.loop = HandLoop()
        self.payloads = Payloads()
        self.queues: dict[str, Queue] = {}
        self.forwarders: list[BoxForwarder] = []
        for number, (name, description) in enumerate(self.descriptions.items(), 1):
            self.queues[name] = Queue(
                number,
                description,
                NamespaceParts(self.store, self.payloads, MemoryBudget(), lambda queue, box: self._wake(box)),
                now_ms=self.now,
                last_seq=last_seqs.get(number, 0),
            )
        for name, path in zip(self.names, self.names[1:], strict=False):
            source = self.queues[name]
            box = source.dead if self.dead else source.main
            options: dict[str, Any] = {"find": self.queues.get, "loop": self.loop, "now_ms": lambda: self.now}
            options["moving"] = MemoryBudget().moving.share()
            self.forwarders.append(BoxForwarder(source, box, path, self.store, **options))

    def _wake(self, box: Box) -> None:
        for forwarder in self.forwarders:
            if forwarder.box is box:
                forwarder.wake()

    def restart(self) -> None:
        self.store._writes.clear()
        self.store._callbacks.clear()
        recovered = self.store.recover()
        self._open({each.entity_id: each.last_seq for each in recovered.entities})
        self.payloads.recover(self.store.payloads())
        for row in self.store.index():
            assert list(self.queues.values())[entity_of(row.box) - 1].recover(row)
        for forwarder in self.forwarders:
            forwarder.wake()

    def turn(self) -> None:
        """Run the calls of one turn of the loop, without the commit."""
        calls, self.loop.soon = self.loop.soon, []
        for call in calls:
            call()

    def settle_down(self) -> None:
        for _ in range(50):
            self.turn()
            self.store.commit()
        assert not self.loop.soon

    def send(self, name: str, *texts: str, **fields: Any) -> None:
        answer = Answer()
        self.queues[name].send([draft(text, **fields) for text in texts], self.now, answer)
        self.store.commit()
        assert answer.value is None

    def places(self) -> dict[str, list[str]]:
        """Peek at every queue and return its texts by queue name; dead letters are under `name†`."""
        found = {}
        for name, queue in self.queues.items():
            for key, box in ((name, queue.main), (f"{name}†", queue.dead)):
                texts = [text_of(message.body) for message in queue.peek(box, 1, 1000, self.now)]
                if texts:
                    found[key] = texts
        return found

    def dead_letter(self, name: str, *texts: str, **changes: Any) -> None:
        queue = self.queues[name]
        queue.send([replace(draft(text), **changes) for text in texts], self.now, Answer())
        self.store.commit()
        while (lock := lock_next(queue.main, self.now)) is not None:
            queue.settle(queue.main, lock.token, Outcome.DEAD_LETTER, self.now, lambda refusal: None, patch=b"")
        self.store.commit()


def test_a_chain_passes_messages_on_in_order_and_counts_hops() -> None:
    """Each hop is a commit of its own; nothing stays behind."""
    chain = Chain("abc")
    chain.send("a", *map(str, range(250)))
    chain.settle_down()
    assert chain.places() == {"c": [str(n) for n in range(250)]}
    assert [queue.size_bytes > 0 for queue in chain.queues.values()] == [False, False, True]
    lock = lock_next(chain.queues["c"].main, chain.now)
    assert lock is not None and (lock.message.hops, lock.message.origin_seq) == (2, 1)
    chain.restart()
    chain.settle_down()
    assert chain.places() == {"c": [str(n) for n in range(250)]}


@pytest.mark.parametrize("dead", [False, True])
def test_messages_that_cannot_be_read_are_forwarded_after_a_pause(dead: bool) -> None:
    """A read that fails for a moment leaves the messages in their source, in order."""
    chain = Chain(dead=dead)
    if dead:
        chain.dead_letter("a", "1", "2")
    else:
        chain.send("a", "1", "2")
    chain.restart()
    with patch.object(chain.store, "load", side_effect=StoreError("disk I/O error")):
        chain.turn()
    assert chain.places() == {"a†" if dead else "a": ["1", "2"]}
    assert not chain.loop.soon and len(chain.loop.later) == 1
    chain.loop.soon += chain.loop.later
    chain.settle_down()
    assert chain.places() == {"b": ["1", "2"]}


@pytest.mark.parametrize("end", ["failed", "killed"])
@pytest.mark.parametrize("dead", [False, True])
def test_a_move_that_is_not_committed_leaves_the_message_in_its_source(end: str, dead: bool) -> None:
    """The message is not lost and not there twice, and it is forwarded in the end."""
    chain = Chain(dead=dead)
    if dead:
        chain.dead_letter("a", "1", "2")
    else:
        chain.send("a", "1", "2")
    chain.turn()
    assert chain.store._writes, "the move is under way"
    if end == "failed":
        chain.store.fail_next(DISK_FULL)
        chain.store.commit()
        assert chain.places() == {"a†" if dead else "a": ["1", "2"]}
        chain.turn()
        assert not chain.store._writes, "on a full disk the move is not tried again at once"
        chain.loop.soon += chain.loop.later
    else:
        chain.restart()
        assert chain.places() == {"a†" if dead else "a": ["1", "2"]}
    chain.settle_down()
    assert chain.places() == {"b": ["1", "2"]}
    for queue in chain.queues.values():
        rows = [row.size for row in chain.store.index() if entity_of(row.box) == queue.entity_id]
        assert queue.size_bytes == sum(rows)


def test_a_duplicate_at_the_destination_is_dropped_with_the_move() -> None:
    """The destination treats the message as a sent one; also when the first of the two is not committed yet."""
    chain = Chain(last={"requires_duplicate_detection": True})
    chain.queues["b"].send([draft("first", message_id="m")], chain.now, Answer())
    answer = Answer()
    chain.queues["a"].send([draft("again", message_id="m"), draft("other")], chain.now, answer)
    chain.settle_down()
    assert answer.value is None
    assert chain.places() == {"b": ["first", "other"]}


def test_a_claimed_id_at_the_destination_is_waited_for() -> None:
    """A message must not leave the source before the destination is known to take it."""
    chain = Chain(last={"requires_duplicate_detection": True})
    chain.send("a", "again", message_id="m")
    chain.queues["b"].send([draft("first", message_id="m")], chain.now, Answer())
    chain.turn()
    chain.store.fail_next(DISK_FULL)
    chain.store.commit()
    chain.settle_down()
    assert chain.places() == {"b": ["again"]}


def test_too_many_hops_end_in_the_dead_letter_queue() -> None:
    """Rings end too: the message goes round until it is tired."""
    chain = Chain("ab")
    chain.forwarders.append(
        BoxForwarder(
            chain.queues["b"],
            chain.queues["b"].main,
            "a",
            chain.store,
            find=lambda path: chain.queues[path],
            loop=cast(Any, chain.loop),
            now_ms=lambda: chain.now,
            moving=MemoryBudget().moving.share(),
        )
    )
    chain.send("a", "1")
    chain.settle_down()
    assert chain.places() == {"a†": ["1"]}
    lock = lock_next(chain.queues["a"].dead, chain.now)
    assert lock is not None and lock.message.hops == HOPS_MAX
    assert TOO_MANY_HOPS.encode() in lock.message.patch


def test_dead_letter_without_hops_left_blocks_no_other() -> None:
    """A dead letter that has used its four hops can still be received where it is, and does not block fresh ones."""
    chain = Chain("abcdef", dead=True)
    chain.dead_letter("a", "a")
    for name in "abcde":
        chain.settle_down()
        queue = chain.queues[chr(ord(name) + 1)]
        while (lock := lock_next(queue.main, chain.now)) is not None:
            queue.settle(queue.main, lock.token, Outcome.DEAD_LETTER, chain.now, lambda refusal: None)
        chain.store.commit()
    chain.settle_down()
    assert chain.places() == {"e†": ["a"]}
    chain.dead_letter("e", "fresh")
    chain.settle_down()
    assert chain.places() == {"e†": ["a"], "f": ["fresh"]}
    lock = lock_next(chain.queues["e"].dead, chain.now)
    assert lock is not None and text_of(lock.message.body) == "a"


def test_a_letter_that_dies_twice_names_its_last_source() -> None:
    """A map of annotations has each key once; a second one would make the message unreadable for strict clients."""
    chain = Chain("abc", dead=True)
    chain.dead_letter("a", "1")
    for name, source in (("b", "a"), ("c", "b")):
        chain.settle_down()
        lock = lock_next(chain.queues[name].main, chain.now)
        assert lock is not None
        encoded = encode_delivery(lock.message)
        [at] = [value_at for code, _, value_at, _ in sections(encoded) if code == MESSAGE_ANNOTATIONS]
        pairs = [(key, decode(encoded, value_at)[0]) for key, _, value_at, _ in pair_spans(encoded, at)]
        assert [value for key, value in pairs if key == DEAD_LETTER_SOURCE] == [source]
        chain.queues[name].settle(
            chain.queues[name].main, lock.token, Outcome.DEAD_LETTER, chain.now, lambda refusal: None
        )
        chain.store.commit()


def test_a_message_without_a_session_is_dead_lettered_before_a_session_queue() -> None:
    """Messages with a session go on; the reason names the destination."""
    chain = Chain(last={"requires_session": True})
    chain.send("a", "lost")
    chain.send("a", "found", session_id="s")
    chain.settle_down()
    assert chain.places() == {"a†": ["lost"], "b": ["found"]}
    lock = lock_next(chain.queues["a"].dead, chain.now)
    assert lock is not None and b"no session id, and 'b' requires sessions" in lock.message.patch


def test_message_that_cannot_be_read_is_dead_lettered_before_a_session_queue() -> None:
    """The properties do not say whether there is a session. The message must not stop those behind it."""
    chain = Chain(last={"requires_session": True})
    chain.queues["a"].send([Draft(b"\x00\x53\x73\xc0\xff" + draft("strange").body)], chain.now, Answer())
    chain.send("a", "found", session_id="s")
    chain.settle_down()
    assert (chain.queues["a"].active_count, chain.queues["a"].dead_count, chain.places()["b"]) == (0, 1, ["found"])


def test_dead_letters_wait_for_a_destination_that_is_switched_off() -> None:
    """No dead letter is lost, and they go on when the destination takes messages again."""
    chain = Chain(dead=True, last={"status": "SendDisabled"})
    chain.dead_letter("a", "1")
    chain.settle_down()
    assert chain.places() == {"a†": ["1"]}
    chain.queues["b"].update(QueueDescription("b"), chain.now)
    chain.loop.soon += chain.loop.later
    chain.settle_down()
    assert chain.places() == {"b": ["1"]}


def test_a_live_message_for_a_switched_off_destination_is_dead_lettered() -> None:
    """The service does so too; the reason names the destination."""
    chain = Chain(last={"status": "Disabled"})
    chain.send("a", "1")
    chain.settle_down()
    assert chain.places() == {"a†": ["1"]}
    lock = lock_next(chain.queues["a"].dead, chain.now)
    assert lock is not None and b"MessagingEntityDisabled" in lock.message.patch and b"'b'" in lock.message.patch


@pytest.mark.parametrize("end", ["committed", "failed", "killed"])
def test_a_message_without_a_session_id_for_sessions_dies_in_its_source(end: str) -> None:
    """The way into the dead-letter queue is one commit: until then the message is in the source, from then on it
    is dead there.

    Those with a session id go on, whatever becomes of the others.
    """
    chain = Chain(last={"requires_session": True})
    answer = Answer()
    mixed = [replace(draft(text), session_id=of) for text, of in (("1", None), ("2", "s"), ("3", None), ("4", "s"))]
    chain.queues["a"].send(mixed, chain.now, answer)
    chain.store.commit()
    chain.turn()
    assert chain.store._writes, "the writes of both moves are under way"
    if end == "failed":
        chain.store.fail_next(DISK_FULL)
        chain.store.commit()
        assert chain.places() == {"a": ["1", "2", "3", "4"]}
        chain.loop.soon += chain.loop.later
    elif end == "killed":
        chain.restart()
        assert chain.places() == {"a": ["1", "2", "3", "4"]}
    chain.settle_down()
    assert chain.places() == {"a†": ["1", "3"], "b": ["2", "4"]}
    lock = lock_next(chain.queues["a"].dead, chain.now)
    assert lock is not None and SESSION_MISSING.encode() in lock.message.patch
    chain.restart()
    chain.settle_down()
    assert chain.places() == {"a†": ["1", "3"], "b": ["2", "4"]}


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("broken", ["check_room", "_write"])
def test_failing_send_leaves_messages_in_their_source(broken: str, dead: bool) -> None:
    """A failure in the destination costs nothing: no deletion is written, and the forwarder tries again later."""
    chain = Chain(dead=dead, last={"requires_duplicate_detection": True})
    if dead:
        chain.dead_letter("a", "1", "2")
    else:
        chain.send("a", "1", "2")
    with (
        patch.object(chain.queues["b"], broken, side_effect=RuntimeError("bug")),
        pytest.raises(RuntimeError, match="bug"),
    ):
        chain.turn()
    assert not chain.store._writes and not chain.forwarders[0].is_working
    assert chain.places() == {"a†" if dead else "a": ["1", "2"]}
    chain.loop.soon += chain.loop.later
    chain.settle_down()
    assert chain.places() == {"b": ["1", "2"]}


@pytest.mark.parametrize("reason", ["tired", "without a session"])
def test_dead_letters_behind_many_that_stay_are_forwarded(reason: str) -> None:
    """More of them than a batch has stay where they are; the next ones need no further dead letter to be found."""
    stays: dict[str, Any] = {"hops": HOPS_MAX, "session_id": "s"} if reason == "tired" else {}
    chain = Chain(dead=True, last={"requires_session": True})
    old = [f"old{n}" for n in range(2 * BATCH_MAX + 1)]
    with patch.object(chain.loop, "call_soon"):
        chain.dead_letter("a", *old, **stays)
    chain.forwarders[0]._is_scheduled = False
    chain.dead_letter("a", "fresh", "also", session_id="s")
    chain.settle_down()
    assert chain.places() == {"a†": old, "b": ["fresh", "also"]}
    chain.dead_letter("a", "later", session_id="s")
    chain.settle_down()
    assert chain.places() == {"a†": old, "b": ["fresh", "also", "later"]}
    chain.restart()
    chain.settle_down()
    assert chain.places() == {"a†": old, "b": ["fresh", "also", "later"]}


def test_dead_letters_that_have_left_are_forgotten() -> None:
    """A forwarder remembers only rows that are there, whatever has passed through the box."""
    chain = Chain(dead=True)
    queue, forwarder = chain.queues["a"], chain.forwarders[0]
    for _ in range(3):
        chain.dead_letter("a", *map(str, range(50)), hops=HOPS_MAX)
        chain.settle_down()
        assert len(forwarder._tired) == 50
        while (lock := lock_next(queue.dead, chain.now)) is not None:
            queue.settle(queue.dead, lock.token, Outcome.COMPLETE, chain.now, lambda refusal: None)
        chain.store.commit()
    chain.dead_letter("a", "fresh")
    chain.settle_down()
    assert not forwarder._tired
    assert chain.places() == {"b": ["fresh"]}


def test_dead_letters_without_a_session_go_to_a_new_destination() -> None:
    """The destination that required sessions is replaced by one that does not."""
    chain = Chain(dead=True, last={"requires_session": True})
    chain.dead_letter("a", "1", "2")
    chain.settle_down()
    assert chain.places() == {"a†": ["1", "2"]}
    chain.queues["b"] = Queue(
        9,
        QueueDescription("b"),
        NamespaceParts(chain.store, chain.payloads, MemoryBudget(), lambda queue, box: None),
        now_ms=chain.now,
    )
    chain.loop.soon, chain.loop.later = chain.loop.later, []
    chain.settle_down()
    assert chain.places() == {"b": ["1", "2"]}


def test_dead_letters_that_wait_for_another_destination_are_not_looked_for_again() -> None:
    """The destination is looked up once a second. Without a new one there is no reason to pass over all dead letters
    once more; after a failed commit there is."""
    chain = Chain(dead=True, last={"requires_session": True})
    chain.dead_letter("a", "1", "2")
    chain.settle_down()
    for _ in range(3):
        [again], chain.loop.later = chain.loop.later, []
        again()
        assert not chain.forwarders[0].is_working
    chain.dead_letter("a", "found", session_id="s")
    chain.turn()
    chain.store.fail_next(DISK_FULL)
    chain.store.commit()
    assert chain.places() == {"a†": ["1", "2", "found"]}
    [again], chain.loop.later = chain.loop.later, []
    again()
    chain.settle_down()
    assert chain.places() == {"a†": ["1", "2"], "b": ["found"]}


@pytest.mark.parametrize("dead", [False, True])
def test_batch_of_large_messages_is_small(dead: bool) -> None:
    """A batch is in memory until its commit, so a hundred messages of the largest size must not be one batch."""
    chain = Chain(dead=dead)
    texts = [str(n) for n in range(10)]
    padding = encode_pair("x", "x" * (BATCH_BYTES // 3))
    with patch.object(chain.loop, "call_soon"):
        if dead:
            chain.dead_letter("a", "tired", hops=HOPS_MAX, annotations=padding)
            chain.dead_letter("a", *texts, annotations=padding)
            chain.forwarders[0]._tired = {1}
        else:
            chain.queues["a"].send([replace(draft(text), annotations=padding) for text in texts], chain.now, Answer())
            chain.store.commit()
    chain.forwarders[0]._is_scheduled = False
    chain.forwarders[0].run()
    [numbers] = [op.numbers for op in chain.store._writes if isinstance(op, Delete)]
    assert 1 <= len(numbers) <= 4
    chain.settle_down()
    assert chain.places()["b"] == texts


def test_forwarded_copy_counts_towards_its_queue_alone() -> None:
    """A topic whose subscriptions are empty takes messages, however many of them wait in queues behind them."""
    world = TopicWorld({"a": {}, "b": {}})
    queue_id, loop = 9, HandLoop()

    def opened(payloads: Payloads) -> Queue:
        parts = NamespaceParts(world.store, payloads, MemoryBudget(), lambda queue, box: None)
        return Queue(queue_id, QueueDescription("q"), parts, now_ms=world.now)

    queue = opened(world.payloads)
    options: dict[str, Any] = {"find": lambda path: queue, "loop": loop, "now_ms": lambda: world.now}
    options["moving"] = MemoryBudget().moving.share()
    forwarder = BoxForwarder(world["a"], world["a"].main, "q", world.store, **options)
    world.send(draft("x" * 200))
    forwarder.run()
    world.store.commit()
    size = len(draft("x" * 200).body)
    assert (world.topic.size_bytes, queue.size_bytes) == (size, size), "the copy of b counts"
    world.complete("b", *world.locks("b"))
    assert (world.topic.size_bytes, queue.size_bytes) == (0, size)
    payloads = Payloads()
    payloads.recover(world.store.payloads())
    again = opened(payloads)
    assert [again.recover(row) for row in world.store.index()] == [True]
    assert (payloads.bytes_of(TOPIC_ID), again.size_bytes) == (0, size), "as before the restart"
    Sweeper(world.store, payloads, retry_later=lambda step: None).add(again.remains())
    world.store.commit()
    assert payloads.bytes_of(TOPIC_ID) == 0 and not list(world.store.payloads())


@pytest.mark.parametrize("reason", ["no rule selects it", "it is a duplicate"])
def test_forward_without_inserts_is_made_once_beside_a_send_that_finds_no_room(tmp_path: Path, reason: str) -> None:
    """A full disk fails the send and commits the deletion in the source. A forwarder that was told of the failure of
    the send deleted the same row again a second later, and with it the body that the other subscription shared."""
    now = 1_790_000_000_000
    hand = HandLoop()

    async def opened() -> tuple[Namespace, SqliteStore, list[str]]:
        loop = asyncio.get_running_loop()
        store = SqliteStore(tmp_path, loop=loop)
        namespace = Namespace("contoso", store, KeyRing([]), loop=loop, now_ms=lambda: now)
        return namespace, store, namespace.recover()

    def texts(namespace: Namespace, name: str) -> list[str]:
        subscription = namespace.catalog.subscription("t", name)
        return [text_of(message.body) for message in subscription.peek(subscription.main, 1, 10, now)]

    def hinder(takes_room: bool, done: Callable[[StoreError | None], None]) -> None:
        asyncio.get_running_loop().call_soon(done, DISK_FULL if takes_room else None)

    async def history() -> None:
        namespace, store, _ = await opened()
        await namespace.create(TopicDescription("t"))
        await namespace.create(SubscriptionDescription("t", "s1"))
        await namespace.create(SubscriptionDescription("t", "s2"))
        await namespace.create(QueueDescription("other"))
        end: Queue | Topic
        if reason == "it is a duplicate":
            await namespace.create(QueueDescription("end", requires_duplicate_detection=True))
            end = namespace.catalog.queue("end")
            end.send([draft("precious")], now, Answer())
        else:
            await namespace.create(TopicDescription("end"))
            end = namespace.catalog.topic("end")
        namespace.catalog.topic("t").send([draft("precious")], now, Answer())
        assert await commit(store) is None
        source = namespace.catalog.subscription("t", "s1")
        options: dict[str, Any] = {"find": lambda path: end, "loop": hand, "now_ms": lambda: now}
        options["moving"] = MemoryBudget().moving.share()
        forwarder = BoxForwarder(source, source.main, "end", store, **options)
        store.hindrance = hinder
        forwarder.run()
        answer = Answer()
        namespace.catalog.queue("other").send([draft("x")], now, answer)
        assert await commit(store) is DISK_FULL
        assert answer.condition == INTERNAL_ERROR
        store.hindrance = None
        while calls := hand.soon + hand.later:
            hand.soon, hand.later = [], []
            for call in calls:
                call()
            assert await commit(store) is None
        assert (texts(namespace, "s1"), texts(namespace, "s2")) == ([], ["precious"])
        await namespace.close()
        namespace, _, damage = await opened()
        assert (damage, texts(namespace, "s1"), texts(namespace, "s2")) == ([], [], ["precious"])
        await namespace.close()

    asyncio.run(history())
