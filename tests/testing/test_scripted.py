"""Effects of a scripted endpoint on our own transport, at every step; see `test_scripted_sdk` for the genuine SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import Released
from pairbus.transport import ConnectionLost, Refused, Timeout, connect
from tests.scripted import Accept, Answer, Delay, Detach, HangUp, LoseAnswer, Reject, Reset, ScriptedEndpoint, Silent
from tests.testing.world import Stopwatch, text, texts


@pytest.mark.parametrize("hides", [True, False])
async def test_pings_are_hidden_only_where_that_is_announced(hides: bool) -> None:
    """A client asks with a ping message where no receiver can get it, and by other means elsewhere."""
    ping = Message(properties=Properties(content_type="application/vnd.ms-servicebus-ping"), data=[b""]).encode()
    async with ScriptedEndpoint(hides_pings=hides) as endpoint, await connect(endpoint.connection_string) as connection:
        assert connection.peer_properties.get("com.pairbus:hides-pings", False) is hides
        await (await connection.sender("orders")).send(ping)
        assert [each.is_ping for each in endpoint.received] == [True]
        assert len(endpoint.stored("orders")) == (0 if hides else 1)


async def test_an_answer_can_be_late(endpoint: ScriptedEndpoint) -> None:
    """The other link of the connection does not wait with it."""
    endpoint.on("transfer", Delay(0.5), path="orders", times=1)
    endpoint.on("transfer", Delay(0.2, then=Reject("com.microsoft:server-busy")), path="orders", times=1)
    async with await connect(endpoint.connection_string) as connection:
        orders, invoices = await connection.sender("orders"), await connection.sender("invoices")
        with Stopwatch() as watch:
            sending = asyncio.create_task(orders.send(text("slow")))
            await invoices.send(text("quick"))
            assert not sending.done()
            await sending
        assert 0.45 < watch.seconds < 2
        with pytest.raises(Refused, match="server-busy"):
            await orders.send(text("slow and refused"))
    assert texts(endpoint.stored("orders")) == ["slow"]


@pytest.mark.parametrize("step", ["connect", "sasl", "open", "begin", "token", "attach"])
@pytest.mark.parametrize("action", [Silent(), Reset(), HangUp()], ids=repr)
async def test_every_step_before_a_link_can_be_silent_or_the_end(
    endpoint: ScriptedEndpoint, step: Any, action: Any
) -> None:
    """The place in its opening at which a client meets trouble must not decide whether it ever comes back."""
    endpoint.on(step, action, times=1)
    with pytest.raises(Timeout if isinstance(action, Silent) else ConnectionLost):
        await (await connect(endpoint.connection_string, timeout_s=0.5)).sender("orders", timeout_s=0.5)
    async with await connect(endpoint.connection_string) as connection:
        await (await connection.sender("orders")).send(text("fine"))


@pytest.mark.parametrize("step", ["connect", "sasl", "open", "begin", "token", "attach"])
async def test_every_step_before_a_link_can_be_late(endpoint: ScriptedEndpoint, step: Any) -> None:
    endpoint.on(step, Delay(0.3), times=1)
    with Stopwatch() as watch:
        async with await connect(endpoint.connection_string) as connection:
            await (await connection.sender("orders")).send(text("fine"))
    assert 0.28 < watch.seconds < 3


async def test_a_session_can_be_refused(endpoint: ScriptedEndpoint) -> None:
    endpoint.on("begin", Reject("amqp:resource-limit-exceeded", "no more sessions"))
    async with await connect(endpoint.connection_string) as connection:
        with pytest.raises(Refused, match="no more sessions"):
            await connection.sender("orders", timeout_s=2)


async def test_a_rule_for_one_entity_does_not_meet_the_others(endpoint: ScriptedEndpoint) -> None:
    """The rule does not meet the nodes either: a rule without a path is for entities only."""
    endpoint.on("attach", Reject("amqp:unauthorized-access"), path="Orders")
    endpoint.on("token", Reject(status=404), path="missing")
    async with await connect(endpoint.connection_string) as connection:
        with pytest.raises(Refused, match="unauthorized"):
            await connection.sender("orders")
        with pytest.raises(Refused, match="not-found"):
            await connection.sender("missing")
        await (await connection.sender("invoices")).send(text("fine"))
    assert [audience.rpartition("/")[2] for audience, _, _ in endpoint.tokens] == ["orders", "missing", "invoices"]


async def test_settlements_are_answered_as_scripted(endpoint: ScriptedEndpoint) -> None:
    """A syphon must know a lock that was lost from an answer that was."""
    endpoint.put("orders", text("a"), text("b"))
    endpoint.on("settlement", Reject("com.microsoft:message-lock-lost"), path="orders", times=1)
    endpoint.on("settlement", LoseAnswer(), path="orders", times=1)
    async with await connect(endpoint.connection_string) as connection:
        receiver = await connection.receiver("orders", credit=1)
        first = await receiver.receive(1, timeout_s=2)
        with pytest.raises(Refused, match="lock-lost"):
            await receiver.complete(first, timeout_s=2)
        again = await receiver.receive(1, timeout_s=2)
        with pytest.raises(Timeout):
            await receiver.complete(again, timeout_s=0.3)
        last = await receiver.receive(1, timeout_s=2)
        await receiver.complete(last, timeout_s=2)
        assert await receiver.receive(1, timeout_s=0.2) == []
    assert [outcome for _, outcome in endpoint.settlements] == ["accepted"] * 3


async def test_what_was_delivered_and_not_settled_waits_again(endpoint: ScriptedEndpoint) -> None:
    endpoint.put("orders", text("a"), text("b"))
    for _ in range(2):
        async with await connect(endpoint.connection_string) as connection:
            received = await (await connection.receiver("orders")).receive(2, timeout_s=2)
            assert len(received) == 2
        await endpoint.until(lambda: endpoint.open_connections == 0)


async def test_an_action_that_means_nothing_at_a_step_is_a_mistake(endpoint: ScriptedEndpoint) -> None:
    """A rule that silently did nothing would make a test that cannot fail."""
    for step, action in (("open", Answer(Released())), ("connect", Delay(1, then=Detach())), ("sasl", LoseAnswer())):
        with pytest.raises(ValueError, match="means nothing"):
            endpoint.on(step, action)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lost"):
        endpoint.on("transfer", LoseAnswer(then=Accept()))
