"""The costs that the budget counts, compared with what Python takes."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from pairbus.amqp.link import SentDelivery
from pairbus.broker.boxes.locks import Locks
from pairbus.broker.boxes.payloads import Payloads
from pairbus.broker.budget import (
    DELIVERY_COST,
    LOCK_COST,
    OPERATION_COST,
    PAYLOAD_COST,
    READY_COST,
    REMEMBERED_COST,
    SCHEDULED_COST,
    TRANSACTION_COST,
    MemoryBudget,
)
from pairbus.broker.entities.duplicates import DuplicateWindow
from pairbus.broker.entities.receivable import Outcome
from pairbus.broker.entities.schedule import WaitingMessage
from pairbus.broker.entities.transactions import Transaction, WaitingSettlement
from pairbus.broker.store import StoredMessage
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.store.records import messages_of, pack_rows
from tests.broker.queue_world import World

COUNT = 5_000
BODY = 1_000
NOW = 1_800_000_000_000


def uuid_text() -> str:
    return str(UUID(bytes=os.urandom(16)))


def bytes_of_each(make: Callable[[], Any]) -> float:
    """Return the bytes that Python takes for each of `COUNT` things that are made together."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    made = make()
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert made is not None
    return taken / COUNT


def check(cost: int, taken: float) -> None:
    """Assert that the budget counts what is there, and not much more."""
    print(f"counted {cost} B, taken {taken:.0f} B")
    assert taken <= cost <= 1.5 * taken


def loaded() -> list[StoredMessage]:
    """Read messages as the store does, from the columns of their rows."""
    messages: list[StoredMessage] = []
    for n in range(10**6, 10**6 + COUNT):
        one = StoredMessage(n, os.urandom(BODY), n=n, message_id=uuid_text(), enqueued_ms=NOW + n)
        row = [bytes(bytearray(each)) if isinstance(each, bytes) else each for each in pack_rows(4, [one])]
        messages += messages_of(4, [tuple(row)], lambda _: ({}, set()))[0]  # type: ignore[list-item]
    return messages


def test_loaded_message_costs_what_is_counted() -> None:
    """Its body counts beside that."""
    check(READY_COST, bytes_of_each(loaded) - BODY)


def test_lock_costs_what_is_counted() -> None:
    """With the head of its message, whose body is in the store alone."""

    def locked() -> Locks:
        locks = Locks()
        for message in loaded():
            [lock] = locks.make([message], NOW)
            lock.message.drop_body()
        return locks

    check(LOCK_COST, bytes_of_each(locked))


def test_unsettled_delivery_costs_what_is_counted() -> None:
    """The link keeps it until the client settles it, perhaps for longer than its lock."""
    link: Any = object()
    check(
        DELIVERY_COST,
        bytes_of_each(lambda: {n: SentDelivery(link, n, os.urandom(16)) for n in range(10**6, 10**6 + COUNT)}),
    )


def test_scheduled_message_costs_what_is_counted() -> None:
    """It may be scheduled for next year."""
    world = World()
    schedule = world.queue._schedule

    def scheduled() -> World:
        for n in range(10**6, 10**6 + COUNT):
            schedule._await(n, WaitingMessage(n + COUNT, NOW + n, BODY, 0, ""))
        return world

    check(SCHEDULED_COST, bytes_of_each(scheduled))


def test_payload_costs_what_is_counted() -> None:
    """The broker knows its size, and the store how many rows share it."""
    budget = MemoryBudget()
    payloads = Payloads(budget.index.share())

    def kept() -> tuple[Payloads, dict[int, int]]:
        shared: dict[int, int] = {}
        for n in range(10**6, 10**6 + COUNT):
            payloads.add(n, 1, BODY + n)
            payloads.add_sharer(n)
            shared[n + COUNT] = 1
        return payloads, shared

    check(PAYLOAD_COST, bytes_of_each(kept))
    assert budget.index.used == PAYLOAD_COST * COUNT
    payloads.release(range(10**6, 10**6 + COUNT))
    assert budget.index.used == 0


def test_remembered_id_costs_what_is_counted() -> None:
    """Ids may be kept for seven days; what was forgotten counts no more."""
    budget = MemoryBudget()
    window = DuplicateWindow(budget.index.share())

    def remembered() -> DuplicateWindow:
        for n in range(COUNT):
            window.resolve(window.claim([(uuid_text(), NOW + n)]), committed=True)
        return window

    check(REMEMBERED_COST, bytes_of_each(remembered))
    assert budget.index.used == REMEMBERED_COST * COUNT
    while window.purge(2 * NOW):
        pass
    assert budget.index.used == 0


def test_open_transaction_costs_what_is_counted() -> None:
    """A client need not discharge it before its time is over."""
    store, share = MemoryStore(), MemoryBudget().undecided.share()
    check(
        TRANSACTION_COST,
        bytes_of_each(lambda: {os.urandom(16): Transaction(share, store, share, NOW + n) for n in range(COUNT)}),
    )


def test_operation_of_a_transaction_costs_what_is_counted() -> None:
    """A settlement with its answer; a message takes less, beside its body and annotations."""
    world = World()
    queue, link = world.queue, object()

    def waiting() -> Transaction:
        transaction = Transaction(link, world.store, MemoryBudget().undecided.share(), NOW)
        for n in range(COUNT):
            token = os.urandom(16)
            transaction._tokens.add(token)
            settlement = WaitingSettlement(queue, queue.main, token, Outcome.ABANDON, b"")
            transaction._settlements.append(settlement)
            transaction._on_committed.append(partial(queue.settle, link, n + 10**6, token))  # type: ignore[arg-type]
        return transaction

    check(OPERATION_COST, bytes_of_each(waiting))
