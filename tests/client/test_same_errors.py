"""Every condition at every place: our clients raise the class and the text of the plain SDK.

All run against the same scripted endpoint, which says no at the attach, in the disposition, on `$cbs` and on
`$management`. Counting failures come without a failover here: the interval is a minute.
"""

from __future__ import annotations

from asyncio import Semaphore, gather
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.client.plain import Caller, Who
from tests.client.world import Stage
from tests.scripted import Reject
from tests.scripted.script import StepName
from tests.sdk.flavours import Flavour

QUEUE = "orders"
OURS: tuple[Who, ...] = ("paired", "single")
CONDITIONS = (
    "amqp:not-found",
    "amqp:unauthorized-access",
    "amqp:resource-limit-exceeded",
    "amqp:not-allowed",
    "amqp:not-implemented",
    "amqp:internal-error",
    "amqp:precondition-failed",
    "amqp:resource-deleted",
    "amqp:link:message-size-exceeded",
    "com.microsoft:entity-disabled",
    "com.microsoft:timeout",
    "com.microsoft:argument-error",
    "com.microsoft:operation-cancelled",
    "com.microsoft:auth-failed",
    "com.microsoft:message-not-found",
    "com.microsoft:entity-already-exists",
    "com.contoso:never-heard-of",
)
"Conditions except server-busy, on which our clients wait."


MESSAGE = ServiceBusMessage("x", message_id="i")
LATER = datetime.now(UTC) + timedelta(hours=1)
SAYS = "No, by the script."
AT_ONCE = 9  # plain clients: the SDK gives a link a limited time to open, and one loop serves all of them
CALL_TIMEOUT_S = 20


async def said(stage: Stage, who: Who, flavour: Flavour, queue: str, method: str, *args: Any) -> tuple[str, str]:
    """(class, text) of the error of one call."""
    caller = Caller(stage, who, flavour, failover_interval=60)
    sender = caller.client.get_queue_sender(queue)
    try:
        await caller.call(getattr(sender, method), *args, timeout=CALL_TIMEOUT_S)
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        if who == "plain":
            await caller.close()
    return "no error", ""


async def compare(
    stage: Stage, flavour: Flavour, step: StepName, refusals: dict[str, Reject], method: str, *args: Any
) -> None:
    """Make the call of each client for each refusal, on a queue of its own: the plain SDK takes a second for one."""
    queues = {name: f"{QUEUE}-{number}" for number, name in enumerate(refusals)}
    for name, refusal in refusals.items():
        stage.primary.on(step, refusal, path=queues[name])
    turns = Semaphore(AT_ONCE)

    async def in_turn(who: Who, queue: str) -> tuple[str, str]:
        async with turns:
            return await said(stage, who, flavour, queue, method, *args)

    async def of(who: Who) -> dict[str, tuple[str, str]]:
        return dict(zip(refusals, await gather(*(in_turn(who, queue) for queue in queues.values())), strict=True))

    plain = await of("plain")
    assert "no error" not in dict(plain.values())
    for who in OURS:
        assert await of(who) == plain, who


REFUSALS = {condition: Reject(condition, SAYS) for condition in CONDITIONS}


async def test_refused_message_raises_the_error_of_the_plain_sdk(stage: Stage, flavour: Flavour) -> None:
    """The condition is in the disposition."""
    await compare(stage, flavour, "transfer", REFUSALS, "send_messages", MESSAGE)


@pytest.mark.timed  # the plain SDK has a limit of its own for the opening of a link
async def test_refused_link_raises_the_error_of_the_plain_sdk(stage: Stage, flavour: Flavour) -> None:
    """The condition comes with null termini and a detach, as the service does it."""
    await compare(stage, flavour, "attach", REFUSALS, "send_messages", MESSAGE)


async def test_refused_token_raises_the_error_of_the_plain_sdk(stage: Stage, flavour: Flavour) -> None:
    """On `$cbs`, by a status."""
    refusals = {str(status): Reject("amqp:unauthorized-access", SAYS, status) for status in (401, 403, 404, 500)}
    await compare(stage, flavour, "token", refusals, "send_messages", MESSAGE)


async def test_refused_schedule_raises_the_error_of_the_plain_sdk(stage: Stage, flavour: Flavour) -> None:
    """On `$management`: class, text, condition and status."""
    await compare(stage, flavour, "request", REFUSALS, "schedule_messages", MESSAGE, LATER)


async def test_refused_cancel_raises_the_error_of_the_plain_sdk(stage: Stage, flavour: Flavour) -> None:
    """The text of any other request begins otherwise."""
    await compare(stage, flavour, "request", REFUSALS, "cancel_scheduled_messages", [1])
