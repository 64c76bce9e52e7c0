"""Requests to `$cbs` and `$management` that no SDK makes, from a client that has logged in, or not yet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Message
from pairbus.amqp.types import Array, Int, Long, ULong
from pairbus.auth.sas import KeyRing, SharedAccessKey, sign
from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.broker.wire.cbs import AUDIENCE_LENGTH_MAX, CbsNode, Grants
from pairbus.transport import ClientConnection, Refused, connect
from tests.transport.test_with_broker import encoded


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """On disk: SQLite takes fewer numbers than Python has."""
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),))
    async with Broker([options], data=tmp_path) as running:
        yield running


@pytest.fixture
async def connection(broker: Broker) -> AsyncIterator[ClientConnection]:
    async with await connect(broker.connection_string("contoso")) as opened:
        yield opened


@pytest.mark.parametrize("number", [Long(-1), Long(2**63 - 1), ULong(2**64 - 1)])
async def test_sequence_numbers_outside_every_queue_are_just_not_there(
    connection: ClientConnection, number: int
) -> None:
    """The largest of them do not fit into the store's integers, and must not end the connection."""
    await (await connection.sender("orders")).send(encoded(1))
    management = await connection.management("orders")
    body = {"from-sequence-number": number, "message-count": Int(1)}
    found = await management.request("peek-message", body)
    assert len(found.get("messages", [])) == (1 if number < 0 else 0)
    for operation in ("cancel-scheduled-message", "receive-by-sequence-number"):
        with pytest.raises(Refused) as refused:
            await management.request(operation, {"sequence-numbers": Array([number], 0x80 if number > 2**63 else 0x81)})
        assert refused.value.condition == "com.microsoft:message-not-found"


def put_token(audience: str) -> Message:
    return Message(
        application_properties={"operation": "put-token", "name": audience, "type": "jwt"},
        value=sign("sb://h/", "root", "key", expires_s=60),
        has_value=True,
    )


def test_an_audience_that_is_no_address_is_not_kept() -> None:
    """Every audience of a connection is remembered with its token, so their size is the memory of a connection."""
    ring, answers = KeyRing([SharedAccessKey("root", "key")]), list[tuple[dict[str, Any], Any]]()
    grants = Grants()
    node = CbsNode(ring, grants, on_token=lambda: None, real_ms=lambda: 1000, check_entity=lambda audience: None)
    for length in (AUDIENCE_LENGTH_MAX, AUDIENCE_LENGTH_MAX + 1):
        node.on_request(put_token("sb://h/".ljust(length, "q")), lambda *answer: answers.append(answer), 1000)
    assert [answer["status-code"] for answer, _ in answers] == [202, 400]
    assert len(grants) == 1


async def test_nothing_is_scheduled_or_cancelled_through_the_dead_letter_queue(connection: ClientConnection) -> None:
    """Dead letters come from the broker alone, and the queue's scheduled messages are not theirs to cancel."""
    management = await connection.management("orders/$DeadLetterQueue")
    with pytest.raises(Refused, match="dead-letter"):
        await management.request("cancel-scheduled-message", {"sequence-numbers": Array([Long(1)], 0x81)})
