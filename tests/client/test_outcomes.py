"""One attribute of every error tells whether a message may be stored: compared with what the endpoints have stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError, ServiceBusError

from pairbus.client.errors import ReservedPropertyError
from pairbus.client.outgoing import new_batch
from tests.client.world import Sender, Stage, message
from tests.scripted import LoseAnswer, Reject, Silent
from tests.scripted.script import StepName
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow

Call = Callable[[Sender], Awaitable[None]]


async def single(sender: Sender) -> None:
    await sender.send(message(), timeout=1.0)


async def many(sender: Sender) -> None:
    await sender.send([message(), message()], timeout=1.0)


async def batch(sender: Sender) -> None:
    made = new_batch(0, None, {})  # without asking the primary for its limit
    made.add_message(message())
    await sender.send(made, timeout=1.0)


async def schedule(sender: Sender) -> None:
    await sender.schedule(message(), datetime.now(UTC) + timedelta(hours=1), timeout=1.0)


async def error_of(call: Call, sender: Sender) -> Any:
    try:
        await call(sender)
    except ServiceBusError as error:
        return error
    raise AssertionError("the call was expected to fail")


@pytest.mark.parametrize("plain", [False, True], ids=["paired", "plain"])
@pytest.mark.parametrize("call", [single, many, batch, schedule])
async def test_each_error_tells_whether_the_message_may_be_stored(
    stage: Stage, flavour: Flavour, call: Call, plain: bool
) -> None:
    """The same class, `OperationTimeoutError`, is raised when the message was stored and when it was never sent."""
    client = stage.client(flavour, failover_interval=60)
    await client.pair()
    if plain:
        await client.clear_pairing()
    last: StepName = "request" if call is schedule else "transfer"
    steps: list[tuple[StepName, Any, bool, type[Exception]]] = [
        (last, LoseAnswer(), True, OperationTimeoutError),
        (last, Reject("amqp:not-found"), False, ServiceBusError),
        (last, Reject("com.microsoft:timeout", status=408), True, ServiceBusError),
        ("attach", Silent(), False, OperationTimeoutError),
    ]
    for number, (step, action, is_unknown, kind) in enumerate(steps):
        sender, path = client.sender(f"q-{number}"), f"q-{number}"
        stage.primary.on(step, action, path=f"{path}/$management" if (step, call) == ("attach", schedule) else path)
        error = await error_of(call, sender)
        assert issubclass(type(error), kind), (step, action, error)
        assert error.outcome_unknown is is_unknown, (step, action, error)
        assert error.may_be_in == (("the primary",) if is_unknown else ())
        assert any("may have stored" in note for note in getattr(error, "__notes__", ())) is is_unknown


async def test_errors_before_the_first_attempt_tell_that_nothing_was_sent(stage: Stage, flavour: Flavour) -> None:
    """Also those that are no errors of the service: nobody needs to ask first which class an error has."""
    client = stage.client(flavour)
    sender = client.sender("orders")
    wrong: list[tuple[Any, dict[str, Any], type[Exception]]] = [
        ("no message", {}, TypeError),
        (message(), {"timeout": 0}, ValueError),
        (message(application_properties={"x-ms-path": "there"}), {}, ReservedPropertyError),
        (message("x" * 300_000), {}, MessageSizeExceededError),
    ]
    for given, how, kind in wrong:
        error = cast(Any, await sender.error(given, **how))
        assert issubclass(type(error), kind) and error.outcome_unknown is False and error.may_be_in == ()
    await client.close()
    closed = cast(Any, await sender.error(message()))
    assert closed.outcome_unknown is False
    assert stage.primary.stored("orders") == []


async def test_an_unforeseen_error_of_an_attempt_has_an_unknown_outcome(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of ours may strike when the message is stored already."""
    client = stage.client(flavour)
    sender = client.sender("orders")
    await sender.send(message())

    def fail(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("pairbus.client.results.Results.meter_primary", fail)
    error = cast(Any, await sender.error(message()))
    assert "a bug" in str(error) and error.outcome_unknown and len(stage.primary.stored("orders")) == 2
