"""Every condition at every place: the paired client raises the class and the text of the plain SDK.

Both run against the same scripted endpoint, which says no at the attach, in the disposition, on `$cbs` and on
`$management`. Counting failures come without a failover here: the interval is a minute.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.client.plain import Caller, Who
from tests.client.world import Stage
from tests.scripted import Reject
from tests.sdk.flavours import Flavour

QUEUE = "orders"
WHO: tuple[Who, ...] = ("plain", "paired")
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
"Conditions except server-busy, on which the paired client waits."


async def said(stage: Stage, who: Who, flavour: Flavour, method: str, *args: Any) -> tuple[str, str]:
    """(class, text) of the error of one call."""
    caller = Caller(stage, who, flavour, failover_interval=60)
    sender = caller.client.get_queue_sender(QUEUE)
    try:
        await caller.call(getattr(sender, method), *args, timeout=8)
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        if who == "plain":
            await caller.close()
    return "no error", ""


async def compared(stage: Stage, flavour: Flavour, method: str, *args: Any) -> None:
    plain, paired = [await said(stage, who, flavour, method, *args) for who in WHO]
    assert paired == plain


MESSAGE = ServiceBusMessage("x", message_id="i")
LATER = datetime.now(UTC) + timedelta(hours=1)


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_refused_message_raises_the_error_of_the_plain_sdk(
    stage: Stage, flavour: Flavour, condition: str
) -> None:
    """The condition is in the disposition."""
    stage.primary.on("transfer", Reject(condition, "No, by the script."), path=QUEUE)
    await compared(stage, flavour, "send_messages", MESSAGE)


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_refused_link_raises_the_error_of_the_plain_sdk(stage: Stage, flavour: Flavour, condition: str) -> None:
    """The condition comes with null termini and a detach, as the service does it."""
    stage.primary.on("attach", Reject(condition, "No, by the script."), path=QUEUE)
    await compared(stage, flavour, "send_messages", MESSAGE)


@pytest.mark.parametrize("status", [401, 403, 404, 500])
async def test_refused_token_raises_the_error_of_the_plain_sdk(stage: Stage, flavour: Flavour, status: int) -> None:
    """On `$cbs`, by a status."""
    stage.primary.on("token", Reject("amqp:unauthorized-access", "No, by the script.", status), path=QUEUE)
    await compared(stage, flavour, "send_messages", MESSAGE)


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_refused_schedule_raises_the_error_of_the_plain_sdk(
    stage: Stage, flavour: Flavour, condition: str
) -> None:
    """On `$management`: class, text, condition and status."""
    stage.primary.on("request", Reject(condition, "No, by the script."), path=QUEUE)
    await compared(stage, flavour, "schedule_messages", MESSAGE, LATER)


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_refused_cancel_raises_the_error_of_the_plain_sdk(stage: Stage, flavour: Flavour, condition: str) -> None:
    """The text of any other request begins otherwise."""
    stage.primary.on("request", Reject(condition, "No, by the script."), path=QUEUE)
    await compared(stage, flavour, "cancel_scheduled_messages", [1])
