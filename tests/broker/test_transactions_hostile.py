"""Transactions of clients that never end them, or send what is no command to the coordinator."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from pairbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED, TRANSACTION_ROLLBACK
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import Accepted, Coordinator, Declare, Detach, Source
from pairbus.amqp.types import Described, Symbol, encode
from pairbus.broker.entities.transactions import LIFETIME_MS, OPEN_MAX, STRANGER_OPEN_MAX
from pairbus.broker.wire.cbs import Grants
from pairbus.broker.wire.requests import TURN_BYTES_MAX
from tests.broker.test_transactions import filled
from tests.broker.transaction_world import TransactionClient, condition_of


async def test_open_transactions_are_bounded() -> None:
    """A client that never discharges any has a thousand; old ones make room when their time is over."""
    client = await TransactionClient().start("orders")
    for _ in range(OPEN_MAX):
        client.peer.transactions.declare(client, client.namespace.now_ms())
    assert condition_of(await client.command(Declare())) == RESOURCE_LIMIT_EXCEEDED
    used = client.namespace.budget.undecided.used
    await client.namespace.clock.advance(LIFETIME_MS / 1000)
    for _ in range(OPEN_MAX):
        await asyncio.sleep(0)
        client.peer.transactions.declare(client, client.namespace.now_ms())
    assert client.namespace.budget.undecided.used == used


async def test_discharge_before_the_answer_to_a_request_rolls_back() -> None:
    """The request waits for its turn when the discharge comes: the rest must not be committed without it."""
    client = await TransactionClient().start("orders")
    await filled(client, "orders", 2)
    _, [first, second] = await client.receive("orders", 2)
    address = "orders/$management"
    await client.receiver(client.work, address, name="answers")
    requests = await client.sender(client.work, address, "requests")
    txn = await client.declare()
    await client.settle(first, Accepted(), txn)
    asked = Message(
        properties=Properties(message_id="1"),
        application_properties={"operation": "com.microsoft:update-disposition"},
        value={"disposition-status": "completed", "lock-tokens": [UUID(bytes_le=second.tag)]},
        has_value=True,
    )
    client.namespace.answer_turns.count(TURN_BYTES_MAX)  # other clients got many answers in this turn
    requests.send_in(txn, asked.encode(), client.tag())
    assert await client.discharge(txn) == TRANSACTION_ROLLBACK
    assert client.count("orders") == len(client.box_of("orders").main.locks) == 2


async def test_client_without_a_token_has_few_open_transactions() -> None:
    """.NET declares before it puts its first token; strangers must not use up what clients need."""
    client = await TransactionClient().start()
    client.peer.grants = Grants()
    for _ in range(STRANGER_OPEN_MAX):
        await client.declare()
    assert condition_of(await client.command(Declare())) == RESOURCE_LIMIT_EXCEEDED


async def test_operations_beyond_the_memory_budget_are_refused() -> None:
    """The messages of open transactions are in memory alone."""
    client = await TransactionClient().start("orders")
    client.namespace.budget.undecided.limit = 20_000
    sender = await client.sender(client.work, "orders")
    txn = await client.declare()
    payload = Message(data=[b"x" * 10_000]).encode()
    assert condition_of(await client.outcome_of(sender, payload, txn)) is None
    assert condition_of(await client.command(Declare())) == RESOURCE_LIMIT_EXCEEDED
    assert await client.send(sender, "small", txn) == RESOURCE_LIMIT_EXCEEDED
    assert await client.discharge(txn) == TRANSACTION_ROLLBACK
    assert not client.namespace.budget.undecided.used


@pytest.mark.parametrize(
    ("payload", "condition"),
    [
        (Message(data=[b"hello"]).encode(), "amqp:invalid-field"),
        (b"\x00\x53\x77" + Accepted().encode(), "amqp:invalid-field"),
        (b"\x00\x53\x77" + Declare(b"global").encode(), "amqp:not-implemented"),
        (b"\x00\x53\x77" + encode(Described(Symbol("amqp:discharge:list"), [])), "amqp:invalid-field"),
        (b"\x00\x53\x77", "amqp:decode-error"),
        (Message(data=[b"x" * 5000]).encode(), "amqp:invalid-field"),
    ],
    ids=["data", "another", "global", "no id", "cut", "large"],
)
async def test_message_that_is_no_command_is_refused(payload: bytes, condition: str) -> None:
    """The connection goes on."""
    client = await TransactionClient().start("orders")
    assert condition_of(await client.outcome_of(client.commands, payload)) == condition
    assert await client.discharge(await client.declare()) is None


async def test_receiver_cannot_attach_to_the_coordinator() -> None:
    """Only a client that sends has a coordinator as its target."""
    client = await TransactionClient().start("orders")
    link = client.work.new_receiver("wrong")
    link.attach(source=Source(address="orders"), target=Coordinator())
    await client.turn()
    error = client.all(Detach)[-1].error
    assert error is not None and error.condition == "amqp:invalid-field"


async def test_settlement_without_an_outcome_is_refused() -> None:
    """Nobody could say what a commit would do."""
    client = await TransactionClient().start("orders")
    await filled(client, "orders", 1)
    _, [delivery] = await client.receive("orders", 1)
    txn = await client.declare()
    state, settled = await client.settle(delivery, None, txn)
    assert condition_of(state) == "amqp:invalid-field" and settled
