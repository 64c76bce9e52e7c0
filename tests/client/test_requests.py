"""Scheduling and cancelling by the failure table: what waits, what is tried again, what counts."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError, ServiceBusServerBusyError

from pairbus.client.errors import ScheduleWhileFailedOver, may_be_in
from pairbus.client.outgoing import THE_PRIMARY
from pairbus.pairing.events import FailedOver, Suspected
from pairbus.pairing.failover import State
from pairbus.transport import Management
from tests.client.losses import QUICK_S, SILENT_S
from tests.client.world import Client, Sender, Stage, message
from tests.limits import slowness
from tests.scripted import Close, Detach, LoseAnswer, Reject, Silent
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow

BUSY = "com.microsoft:server-busy"
CALLS = ["schedule", "cancel"]


async def call(sender: Sender, what: str, timeout: float | None = None) -> None:
    if what == "schedule":
        await sender.schedule(message(), datetime.now(UTC) + timedelta(hours=1), timeout=timeout)
    else:
        await sender.cancel([1], timeout=timeout)


def assert_nothing_counted(client: Client) -> None:
    assert client.told(Suspected) == client.told(FailedOver) == []
    assert client.state("orders") is State.HEALTHY


@pytest.mark.parametrize("what", CALLS)
async def test_a_throttled_request_is_asked_again_after_the_wait(
    stage: Stage, flavour: Flavour, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.pairing.plan.BUSY_WAIT_S", 0.5)
    client = stage.client(flavour)
    sender = client.sender("orders")
    await sender.schedule(message(), datetime.now(UTC) + timedelta(hours=1))
    rule = stage.primary.on("request", Reject(BUSY, status=503), path="orders", times=2)
    began = time.monotonic()
    await call(sender, what)
    assert rule.hits == 2 and time.monotonic() - began >= 1.0
    assert_nothing_counted(client)


@pytest.mark.parametrize("what", CALLS)
async def test_a_throttled_request_without_the_time_to_wait_fails_at_once(
    stage: Stage, flavour: Flavour, what: str
) -> None:
    client = stage.client(flavour)
    sender = client.sender("orders")
    rule = stage.primary.on("request", Reject(BUSY, status=503), path="orders")
    began = time.monotonic()
    with pytest.raises(ServiceBusError, match=BUSY):
        await call(sender, what, timeout=9)
    assert rule.hits == 1 and time.monotonic() - began < QUICK_S * slowness()
    assert_nothing_counted(client)


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize(
    "trouble",
    [Reject("amqp:internal-error"), Detach(), Close()],
    ids=["internal error", "detach", "close"],
)
async def test_one_failed_request_is_repeated_and_does_not_count(
    stage: Stage, flavour: Flavour, what: str, trouble: Any
) -> None:
    client = stage.client(flavour)
    sender = client.sender("orders")
    await sender.schedule(message(), datetime.now(UTC) + timedelta(hours=1))
    rule = stage.primary.on("request", trouble, path="orders", times=1)
    await call(sender, what)
    assert rule.hits == 1
    assert_nothing_counted(client)


@pytest.mark.parametrize("what", CALLS)
async def test_three_internal_errors_count_once(stage: Stage, flavour: Flavour, what: str) -> None:
    client = stage.client(flavour, ping_primary_interval=60)
    sender = client.sender("orders")
    rule = stage.primary.on("request", Reject("amqp:internal-error"), path="orders")
    began = time.monotonic()
    with pytest.raises(ScheduleWhileFailedOver):
        await call(sender, what)
    assert rule.hits == 3 and time.monotonic() - began < QUICK_S * slowness()
    assert len(client.told(FailedOver)) == 1


@pytest.mark.parametrize("what", CALLS)
async def test_a_silent_primary_is_left_by_a_request_too(stage: Stage, flavour: Flavour, what: str) -> None:
    client = stage.client(flavour, ping_primary_interval=60)
    sender = client.sender("orders")
    rule = stage.primary.on("request", Silent(), path="orders")
    began = time.monotonic()
    with pytest.raises(ScheduleWhileFailedOver) as caught:
        await call(sender, what)
    assert rule.hits == 1 and time.monotonic() - began < SILENT_S * slowness()
    assert caught.value.outcome_unknown, "the primary may have carried the request out"


@pytest.mark.parametrize("what", CALLS)
async def test_error_of_a_request_tells_of_an_earlier_request_without_an_answer(
    stage: Stage, flavour: Flavour, what: str
) -> None:
    """The first request may have been carried out: a caller that does not know of it would schedule a second one."""
    client = stage.client(flavour, failover_interval=60)
    sender = client.sender("orders")
    await sender.send(message())
    stage.primary.on("request", LoseAnswer(Detach()), path="orders", times=1)
    stage.primary.on("request", Reject(BUSY, status=503), path="orders")
    with pytest.raises(ServiceBusServerBusyError) as caught:
        await call(sender, what, timeout=5)
    assert caught.value.__notes__ == [may_be_in((THE_PRIMARY,))]


async def test_a_request_is_never_kept_in_the_spool(stage: Stage, flavour: Flavour, tmp_path: Path) -> None:
    """A time-out that is too short to say anything about the primary: a message would go to the disk."""
    client = stage.client(flavour, spool_dir=tmp_path)
    sender = client.sender("orders")
    await sender.send(message())
    stage.primary.on("request", Silent(), path="orders")
    with pytest.raises(OperationTimeoutError):
        await call(sender, "schedule", timeout=0.3)
    assert client.client.counters["total"]["spooled"] == 0
    assert_nothing_counted(client)


@pytest.mark.parametrize("what", CALLS)
async def test_request_that_ends_by_a_bug_may_have_been_carried_out(
    stage: Stage, flavour: Flavour, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer has no numbers where they belong, for example: the primary has done what it was asked."""

    async def misread(node: Management, *args: Any) -> None:
        raise ValueError("no number")

    monkeypatch.setattr(Management, what, misread)
    with pytest.raises(ValueError, match="no number") as caught:
        await call(stage.client(flavour).sender("orders"), what)
    error: Any = caught.value
    assert (error.outcome_unknown, error.may_be_in) == (True, (THE_PRIMARY,))
