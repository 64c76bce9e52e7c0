"""Transactions over AMQP, by a client that is scripted frame by frame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.errors import (
    MESSAGE_SIZE_EXCEEDED,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    TRANSACTION_ROLLBACK,
    TRANSACTION_TIMEOUT,
    TRANSACTION_UNKNOWN_ID,
)
from pairbus.amqp.events import Delivery, Disposed, SettlementAnswered
from pairbus.amqp.message import BATCH_FORMAT, encode_batch
from pairbus.amqp.performatives import (
    Accepted,
    Attach,
    Detach,
    Discharge,
    Error,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
)
from pairbus.amqp.types import Described, Symbol, encode
from pairbus.broker.description import TopicDescription
from pairbus.broker.description.rule import RuleDescription
from pairbus.broker.description.subscription import SubscriptionDescription
from pairbus.broker.entities.transactions import LIFETIME_MS, OPERATIONS_MAX
from pairbus.broker.refusal import MESSAGE_LOCK_LOST
from pairbus.broker.wire.session_links import SESSION_FILTER
from pairbus.errors import StoreError
from pairbus.filters import SqlFilter
from tests.broker.strict_world import message
from tests.broker.transaction_world import TransactionClient, condition_of

DEAD_LETTER = Rejected(Error("com.microsoft:dead-letter", None, {Symbol("DeadLetterReason"): "why"}))


async def filled(client: TransactionClient, path: str, count: int) -> None:
    """Put messages into a queue."""
    link = await client.sender(client.work, path, f"fills {path}")
    for number in range(count):
        link.send(message(f"old {number}"), client.tag())
    await client.turn()


# ── commit and roll-back ──


async def test_sends_and_completions_take_effect_together() -> None:
    """Nobody sees an effect before the discharge; after it all of them are there."""
    client = await TransactionClient().start("orders", "bills")
    await filled(client, "orders", 2)
    _, deliveries = await client.receive("orders", 2)
    sender = await client.sender(client.work, "bills")
    txn = await client.declare()
    assert await client.send(sender, "new 1", txn) is None
    assert await client.send(sender, "new 2", txn) is None
    for delivery in deliveries:
        assert await client.settle(delivery, Accepted(), txn) == (TransactionalState(txn, Accepted()), False)
    assert (client.count("orders"), client.count("bills")) == (2, 0)
    assert await client.discharge(txn) is None
    assert (client.count("orders"), client.count("bills")) == (0, 2)
    answers = client.all_events(SettlementAnswered)
    assert [(each.state, each.settled) for each in answers] == [(Accepted(), True)] * 2
    assert await client.discharge(txn) == TRANSACTION_UNKNOWN_ID


async def test_rolled_back_completion_leaves_its_lock_as_it_was() -> None:
    """The same token and end: the client can settle the delivery again, and nobody else gets the message."""
    client = await TransactionClient().start("orders", "bills")
    await filled(client, "orders", 1)
    _, [delivery] = await client.receive("orders", 1)
    [lock] = client.box_of("orders").main.locks
    until_ms = lock.until_ms
    sender = await client.sender(client.work, "bills")
    txn = await client.declare()
    await client.send(sender, "new", txn)
    await client.settle(delivery, Accepted(), txn)
    assert await client.discharge(txn, fail=True) is None
    assert (client.count("orders"), client.count("bills")) == (1, 0)
    [after] = client.box_of("orders").main.locks
    assert after is lock and after.until_ms == until_ms and after.token == delivery.tag
    assert await client.settle(delivery, Accepted(), None) == (Accepted(), True)
    assert client.count("orders") == 0


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (Accepted(), (0, 0, 0, 0)),
        (Modified(delivery_failed=True), (1, 0, 0, 1)),
        (Modified(undeliverable_here=True), (0, 1, 0, 0)),
        (DEAD_LETTER, (0, 0, 1, 0)),
        (Released(), (1, 0, 0, 0)),
    ],
    ids=["complete", "abandon", "defer", "dead-letter", "release"],
)
async def test_every_settlement_waits_for_the_discharge(outcome: Any, counts: tuple[int, ...]) -> None:
    """(waiting, deferred, dead, delivery count) before the discharge, and after it."""
    client = await TransactionClient().start("orders")
    await filled(client, "orders", 1)
    _, [delivery] = await client.receive("orders", 1)
    queue = client.box_of("orders")
    txn = await client.declare()
    assert await client.settle(delivery, outcome, txn) == (TransactionalState(txn, outcome), False)
    assert len(queue.main.locks) == 1 and (queue.active_count, queue.deferred_count, queue.dead_count) == (1, 0, 0)
    assert await client.discharge(txn) is None
    assert not queue.main.locks
    waiting = queue.peek(queue.main, 1, 10, 0)
    count = waiting[0].delivery_count if counts[0] else 0
    assert (queue.active_count, queue.deferred_count, queue.dead_count, count) == counts
    [answer] = client.all_events(SettlementAnswered)
    assert answer.settled and type(answer.state) is type(outcome) and getattr(answer.state, "error", None) is None


@pytest.mark.parametrize("trouble", ["a lost lock", "a failed commit"])
async def test_rolled_back_release_leaves_its_lock_as_it_was(trouble: str) -> None:
    """A release writes nothing, and belongs to its transaction all the same."""
    client = await TransactionClient().start("orders")
    await filled(client, "orders", 2)
    _, [released, dead] = await client.receive("orders", 2)
    queue = client.box_of("orders")
    txn = await client.declare()
    await client.settle(released, Released(), txn)
    await client.settle(dead, DEAD_LETTER, txn)
    if trouble == "a lost lock":
        queue.complete_many(queue.main, [dead.tag], client.namespace.now_ms(), lambda lost, error: None)
        await client.turn()
    else:
        store: Any = client.namespace.store
        store.fail_next(StoreError("the disk is gone"))
    assert await client.discharge(txn) == TRANSACTION_ROLLBACK
    assert released.tag in {lock.token for lock in queue.main.locks}
    assert await client.settle(released, Accepted(), None) == (Accepted(), True)


async def test_discharge_is_answered_after_its_commit() -> None:
    """Accepted means committed, for transactions too."""
    client = await TransactionClient().start("orders")
    sender = await client.sender(client.work, "orders")
    txn = await client.declare()
    await client.send(sender, "new", txn)
    commits: list[Any] = []
    client.namespace.store.hindrance = lambda needs_room, done: commits.append(done)
    client.events.clear()
    client.commands.send(b"\x00\x53\x77" + Discharge(txn).encode(), client.tag())
    await client.turn()
    assert len(commits) == 1 and not client.all_events(Disposed) and client.count("orders") == 0
    commits[0](None)
    await client.turn()
    [answer] = client.all_events(Disposed)
    assert answer.state == Accepted() and client.count("orders") == 1


async def test_commit_that_fails_rolls_back() -> None:
    """The disk refused it: the locks are as they were, and the message can be settled again."""
    client = await TransactionClient().start("orders")
    await filled(client, "orders", 1)
    _, [delivery] = await client.receive("orders", 1)
    sender = await client.sender(client.work, "orders")
    txn = await client.declare()
    await client.send(sender, "new", txn)
    await client.settle(delivery, Accepted(), txn)
    store: Any = client.namespace.store
    store.fail_next(StoreError("the disk is gone"))
    assert await client.discharge(txn) == TRANSACTION_ROLLBACK
    assert client.count("orders") == 1
    [lock] = client.box_of("orders").main.locks
    assert lock.token == delivery.tag
    assert await client.settle(delivery, Accepted(), None) == (Accepted(), True)


async def test_settled_disposition_needs_no_answer() -> None:
    """Qpid Proton can settle before the discharge; after a roll-back the lock runs on."""
    client = await TransactionClient().start("orders")
    await filled(client, "orders", 2)
    _, [first, second] = await client.receive("orders", 2)
    txn = await client.declare()
    assert await client.settle(first, Accepted(), txn, settled=True) is None
    assert await client.discharge(txn) is None and client.count("orders") == 1
    txn = await client.declare()
    assert await client.settle(second, Accepted(), txn, settled=True) is None
    assert await client.discharge(txn, fail=True) is None
    assert client.count("orders") == len(client.box_of("orders").main.locks) == 1


async def test_empty_transaction_is_discharged() -> None:
    """Nothing was done in it, and nothing is wrong with that."""
    client = await TransactionClient().start("orders")
    assert await client.discharge(await client.declare()) is None


async def test_commands_are_read_by_their_symbols_too() -> None:
    """Qpid Proton's Python client names them so."""
    client = await TransactionClient().start("orders")
    body = b"\x00\x53\x77" + encode(Described(Symbol("amqp:declare:list"), [None]))
    txn = (await client.outcome_of(client.commands, body)).txn_id
    body = b"\x00\x53\x77" + encode(Described(Symbol("amqp:discharge:list"), [txn, False]))
    assert condition_of(await client.outcome_of(client.commands, body)) is None


# ── roll-backs that the client did not ask for ──


async def test_lost_link_rolls_back_its_transactions() -> None:
    """The link to the coordinator on which they were declared; transactions of other links go on."""
    client = await TransactionClient().start("orders")
    other = await client.coordinator(await client.session(), "other")
    lost, kept = await client.declare(other), await client.declare()
    sender = await client.sender(client.work, "orders")
    assert await client.send(sender, "lost", lost) is None
    assert await client.send(sender, "kept", kept) is None
    other.detach()
    await client.turn()
    assert await client.discharge(lost) == TRANSACTION_UNKNOWN_ID
    assert await client.discharge(kept) is None
    assert client.count("orders") == 1


async def test_lost_connection_rolls_back_and_frees_its_memory() -> None:
    """Nothing of the transaction is left."""
    client = await TransactionClient().start("orders")
    sender = await client.sender(client.work, "orders")
    await client.send(sender, "lost", await client.declare())
    assert client.namespace.budget.undecided.used
    client.peer.connection_lost()
    assert not client.namespace.budget.undecided.used and client.count("orders") == 0


async def test_transaction_ends_after_two_minutes_by_the_brokers_clock() -> None:
    """Operations and the discharge are told why; the memory is free before that."""
    client = await TransactionClient().start("orders")
    sender = await client.sender(client.work, "orders")
    first, second = await client.declare(), await client.declare()
    await client.send(sender, "lost", first)
    used = client.namespace.budget.undecided.used
    await client.namespace.clock.advance(LIFETIME_MS / 1000 - 1)
    assert await client.send(sender, "in time", second) is None
    await client.namespace.clock.advance(2)
    client.peer.transactions.run_due(client.namespace.now_ms())
    assert client.namespace.budget.undecided.used < used
    assert await client.send(sender, "late", first) == TRANSACTION_TIMEOUT
    assert await client.discharge(first) == TRANSACTION_TIMEOUT
    assert await client.discharge(second, fail=True) == TRANSACTION_TIMEOUT
    assert await client.discharge(first) == TRANSACTION_UNKNOWN_ID
    assert client.count("orders") == 0 and not client.namespace.budget.undecided.used


async def test_unknown_id_is_refused_everywhere() -> None:
    """Ids of another connection are unknown, because ids are not numbers."""
    client = await TransactionClient().start("orders")
    await filled(client, "orders", 1)
    _, [delivery] = await client.receive("orders", 1)
    sender = await client.sender(client.work, "orders")
    assert await client.send(sender, "new", b"unknown") == TRANSACTION_UNKNOWN_ID
    state, settled = await client.settle(delivery, Accepted(), b"unknown")
    assert condition_of(state) == TRANSACTION_UNKNOWN_ID and settled
    assert await client.discharge(b"unknown") == TRANSACTION_UNKNOWN_ID
    refused = await client.command(Discharge(b"x" * 4000))
    assert len(refused.error.description) < 200
    assert client.count("orders") == 1


async def test_refused_operation_lets_the_transaction_only_be_rolled_back() -> None:
    """A client that does not wait for each answer would otherwise commit the rest."""
    client = await TransactionClient().start("orders")
    sender = await client.sender(client.work, "orders")
    txn = await client.declare()
    assert await client.send(sender, "good", txn) is None
    assert await client.send(sender, "x" * 1_100_000, txn) == MESSAGE_SIZE_EXCEEDED
    assert await client.discharge(txn) == TRANSACTION_ROLLBACK
    assert client.count("orders") == 0


async def test_hundred_operations_are_the_limit() -> None:
    """Each message of a batch and each settlement is one."""
    client = await TransactionClient().start("orders")
    await filled(client, "orders", 2)
    _, [first, second] = await client.receive("orders", 2)
    sender = await client.sender(client.work, "orders")
    batch = encode_batch([message(f"{number}") for number in range(OPERATIONS_MAX - 1)])
    for delivery, is_too_many in ((first, False), (second, True)):
        txn = await client.declare()
        assert condition_of(await client.outcome_of(sender, batch, txn, BATCH_FORMAT)) is None
        await client.settle(delivery, Accepted(), txn)
        if is_too_many:
            assert await client.send(sender, "one too many", txn) == RESOURCE_LIMIT_EXCEEDED
        assert await client.discharge(txn) == (TRANSACTION_ROLLBACK if is_too_many else None)
    assert client.count("orders") == OPERATIONS_MAX


async def lock_ends(client: TransactionClient) -> None:
    await client.namespace.clock.advance(61)


async def settled_elsewhere(client: TransactionClient) -> None:
    queue = client.box_of("from")
    [lock] = queue.main.locks
    queue.complete_many(queue.main, [lock.token], client.namespace.now_ms(), lambda lost, error: None)
    await client.turn()


async def disabled(client: TransactionClient) -> None:
    await client.namespace.update_queue(replace(client.box_of("to").description, status="SendDisabled"))


async def deleted(client: TransactionClient) -> None:
    await client.namespace.delete_queue("to")


async def full(client: TransactionClient) -> None:
    client.box_of("to")._size_max = 0


@pytest.mark.parametrize("trouble", [lock_ends, settled_elsewhere, disabled, deleted, full])
async def test_operation_that_is_no_longer_possible_rolls_all_back(trouble: Any) -> None:
    """Between the operation and the discharge the world has changed: all or nothing."""
    client = await TransactionClient().start("from", "to", "third")
    await filled(client, "from", 1)
    _, [delivery] = await client.receive("from", 1)
    to, third = [await client.sender(client.work, path, path) for path in ("to", "third")]
    txn = await client.declare()
    for link in (third, to):
        assert await client.send(link, "new", txn) is None
    await client.settle(delivery, Accepted(), txn)
    left = client.namespace.queue("from")
    await trouble(client)
    assert await client.discharge(txn) == TRANSACTION_ROLLBACK
    assert client.count("third") == 0 and left is not None
    assert left.active_count == (0 if trouble is settled_elsewhere else 1)
    if trouble in (disabled, deleted, full):
        [lock] = left.main.locks
        assert lock.token == delivery.tag


async def test_lock_is_settled_once_in_a_transaction() -> None:
    """The second settlement is refused, and the transaction with it."""
    client = await TransactionClient().start("orders")
    await filled(client, "orders", 1)
    _, [delivery] = await client.receive("orders", 1)
    txn = await client.declare()
    await client.settle(delivery, Accepted(), txn)
    state, settled = await client.settle(delivery, Released(), txn)
    assert condition_of(state) == MESSAGE_LOCK_LOST and settled
    assert await client.discharge(txn) == TRANSACTION_ROLLBACK and client.count("orders") == 1


async def test_of_two_transactions_that_settle_one_message_the_first_wins() -> None:
    """The other is rolled back whole."""
    client = await TransactionClient().start("orders", "bills")
    await filled(client, "orders", 1)
    _, [delivery] = await client.receive("orders", 1)
    sender = await client.sender(client.work, "bills")
    loser, winner = await client.declare(), await client.declare()
    for txn in (loser, winner):
        await client.settle(delivery, Accepted(), txn)
        await client.send(sender, "new", txn)
    assert await client.discharge(winner) is None
    assert await client.discharge(loser) == TRANSACTION_ROLLBACK
    assert (client.count("orders"), client.count("bills")) == (0, 1)


# ── what entities do with it ──


async def test_duplicates_are_known_at_the_discharge() -> None:
    """Within the transaction, and against messages that came meanwhile; a claimed id is waited for."""
    client = await TransactionClient().start("orders", requires_duplicate_detection=True)
    sender = await client.sender(client.work, "orders")
    txn = await client.declare()
    for text in ("a", "a", "b", "c"):
        assert await client.send(sender, text, txn) is None
    sender.send(message("b"), client.tag())  # in the same read as the discharge: its commit is still to come
    assert await client.discharge(txn) is None
    queue = client.box_of("orders")
    assert sorted(each.message_id for each in queue.peek(queue.main, 1, 10, 0)) == ["a", "b", "c"]


async def test_topic_publishes_at_the_discharge() -> None:
    """The rules decide then, and all copies are in the commit."""
    client = await TransactionClient().start("orders")
    namespace = client.namespace
    await namespace.create(TopicDescription("news"))
    for name, expression in (("all", "1=1"), ("some", "sys.Label = 'x'")):
        rule = RuleDescription("news", name, "$Default", SqlFilter(expression))
        await namespace.create_subscription(SubscriptionDescription("news", name), [rule])
    sender = await client.sender(client.work, "news")
    txn = await client.declare()
    await client.send(sender, "one", txn)
    await client.send(sender, "two", txn, subject="x")
    subscriptions = namespace.catalog.topic("news").subscriptions
    assert [subscriptions[name].active_count for name in ("all", "some")] == [0, 0]
    assert await client.discharge(txn) is None
    assert [subscriptions[name].active_count for name in ("all", "some")] == [2, 1]


async def test_forwarded_message_moves_on_after_the_discharge() -> None:
    """The queue that forwards takes part as any other."""
    client = await TransactionClient().start("end")
    await client.queue("start", forward_to="end")
    sender = await client.sender(client.work, "start")
    txn = await client.declare()
    await client.send(sender, "new", txn)
    assert await client.discharge(txn) is None
    await client.turn()
    assert (client.count("start"), client.count("end")) == (0, 1)


async def test_send_via_reaches_the_destination_with_the_commit() -> None:
    """The link leads to one queue, its messages to another, in the commit that completes."""
    client = await TransactionClient().start("orders", "bills")
    await filled(client, "orders", 1)
    _, [delivery] = await client.receive("orders", 1)
    link = await client.via("orders", "amqps://host/bills")
    attach = client.all(Attach)[-1]
    assert attach.properties == {"com.microsoft:transfer-destination-address": "amqps://host/bills"}
    txn = await client.declare()
    assert await client.send(link, "new", txn) is None
    await client.settle(delivery, Accepted(), txn)
    assert await client.discharge(txn) is None
    assert (client.count("orders"), client.count("bills")) == (0, 1)


@pytest.mark.parametrize(
    ("path", "destination", "condition"),
    [
        ("orders", "nowhere", "amqp:not-found"),
        ("nowhere", "orders", "amqp:not-found"),
        ("orders", "orders/$DeadLetterQueue", NOT_ALLOWED),
        ("orders", "$cbs", "amqp:unauthorized-access"),
    ],
)
async def test_impossible_transfer_is_refused_at_the_attach(path: str, destination: str, condition: str) -> None:
    """Both ends must exist, and the destination must take messages."""
    client = await TransactionClient().start("orders")
    await client.via(path, destination)
    error = client.all(Detach)[-1].error
    assert error is not None and error.condition == condition


async def with_session(client: TransactionClient) -> Delivery:
    """Hold a session that has one message."""
    sender = await client.sender(client.work, "talks", "fills")
    sender.send(message("one", group_id="a"), client.tag())
    await client.turn()
    link = client.work.new_receiver("holder")
    source = Source(address="talks", filter={Symbol(SESSION_FILTER): "a"})
    link.attach(source=source, target=Target(address="client"))
    link.grant(1)
    await client.turn()
    return client.all_events(Delivery)[-1]


async def state_of(client: TransactionClient) -> Any:
    answer = await client.request("talks", "get-session-state", {"session-id": "a"}, None)
    return answer.body["session-state"]


async def test_session_state_and_completion_take_effect_together() -> None:
    """The state is set by a request to `$management` that belongs to the transaction."""
    client = await TransactionClient().start("talks", requires_session=True)
    delivery = await with_session(client)
    txn = await client.declare()
    body = {"session-id": "a", "session-state": b"done"}
    answer = await client.request("talks", "set-session-state", body, txn)
    assert answer.property("statusCode") == 200
    await client.settle(delivery, Accepted(), txn)
    assert await state_of(client) is None and client.count("talks") == 1
    assert await client.discharge(txn) is None
    assert await state_of(client) == b"done" and client.count("talks") == 0


async def test_lost_session_rolls_back() -> None:
    """Its holder may set the state no more, and has lost the locks of its messages."""
    client = await TransactionClient().start("talks", requires_session=True)
    delivery = await with_session(client)
    txn = await client.declare()
    body = {"session-id": "a", "session-state": b"done"}
    await client.request("talks", "set-session-state", body, txn)
    await client.settle(delivery, Accepted(), txn)
    await client.namespace.clock.advance(61)
    assert await client.discharge(txn) == TRANSACTION_ROLLBACK
    assert client.count("talks") == 1


async def test_deferred_message_is_completed_by_a_request() -> None:
    """Messages that were received by number are settled by `$management` alone."""
    client = await TransactionClient().start("orders")
    await filled(client, "orders", 1)
    _, [delivery] = await client.receive("orders", 1)
    await client.settle(delivery, Modified(undeliverable_here=True), None)
    seq = next(iter(client.box_of("orders").main.deferred))
    taken = await client.request("orders", "receive-by-sequence-number", {"sequence-numbers": [seq]}, None)
    token = taken.body["messages"][0]["lock-token"]
    assert isinstance(token, UUID)
    txn = await client.declare()
    body = {"disposition-status": "completed", "lock-tokens": [token]}
    answer = await client.request("orders", "update-disposition", body, txn)
    assert answer.property("statusCode") == 200 and client.box_of("orders").deferred_count == 1
    assert await client.discharge(txn) is None
    assert client.box_of("orders").deferred_count == 0


async def test_request_that_cannot_wait_is_refused_in_a_transaction() -> None:
    """Its answer would have to say what only the commit decides; the transaction fails with it."""
    client = await TransactionClient().start("orders")
    txn = await client.declare()
    body = {"messages": [{"message-id": "1", "message": message("later")}]}
    answer = await client.request("orders", "schedule-message", body, txn)
    assert answer.property("errorCondition") == NOT_ALLOWED
    assert await client.discharge(txn) == TRANSACTION_ROLLBACK


async def test_request_that_changes_nothing_is_answered_in_a_transaction() -> None:
    """A lock is renewed at once, as on Azure."""
    client = await TransactionClient().start("orders")
    await filled(client, "orders", 1)
    _, [delivery] = await client.receive("orders", 1)
    txn = await client.declare()
    body = {"lock-tokens": [UUID(bytes_le=delivery.tag)]}
    answer = await client.request("orders", "renew-lock", body, txn)
    assert answer.property("statusCode") == 200
    assert await client.discharge(txn) is None
