"""Looks of the syphon's driver at queues that refuse to be looked at, on a broker with faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pairbus.errors import ConfigError, PairbusError
from pairbus.spark.connections import Secret
from pairbus.spark.syphon_job.job import SyphonJob
from pairbus.spark.syphon_job.journal import Location
from pairbus.spark.syphon_job.looks import check, count_left
from pairbus.spark.syphon_job.source import SyphonReader
from pairbus.syphon.decide.settings import SyphonSettings
from pairbus.testing.broker_thread import BrokerThread
from pairbus.transport import Carrier
from tests.spark.queues import place_of, text_message

REFUSALS = {
    "internal-error": "internal-error",
    "time-out": "timeout",
    "disable": "entity-disabled",
}
"Faults with which a queue refuses to be peeked, and the condition that each is met with."


class SleepingClock:
    """Time that passes only while the driver sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(scope="module")
def started() -> Iterator[BrokerThread]:
    with BrokerThread() as broker:
        for queue in ("full", "empty"):
            broker.create_queue(queue)
        yield broker


@pytest.fixture
def broker(started: BrokerThread) -> Iterator[BrokerThread]:
    """The same broker for all tests; seven messages are in the queue `full`, and there are no faults."""
    started.namespace().reset()
    asyncio.run(fill(started))
    yield started
    started.namespace().faults.clear()


async def fill(broker: BrokerThread) -> None:
    async with Carrier(broker.connection_string()) as carrier:
        sender = await carrier.sender("full")
        await sender.send_batch([text_message(str(number)) for number in range(7)])


@pytest.fixture
def job(broker: BrokerThread, tmp_path: Path) -> SyphonJob:
    secret = Secret(place_of(broker.connection_string()))
    job = SyphonJob(secret, secret, Location(tmp_path), SyphonSettings(), run="run")
    job.location.prepare(job.run)
    return job


def single_drain(job: SyphonJob, queues: Sequence[str]) -> SyphonReader:
    return SyphonReader(replace(job, queues=dict.fromkeys(queues), once=True))


@pytest.mark.parametrize("fault", REFUSALS)
def test_single_drain_is_not_over_while_a_queue_refuses_the_look(
    broker: BrokerThread, job: SyphonJob, fault: str
) -> None:
    """A user may delete the secondary after a drain that left nothing: a refusal must not count as an empty queue."""
    reader = single_drain(job, ["full"])
    with broker.namespace().outage(fault, entity="full"):
        with pytest.raises(PairbusError, match=f"full cannot be looked at: .*{REFUSALS[fault]}"):
            reader.next_offset({"tick": 0}, None)
        assert not job.location.look(job.run).has_ended
    assert reader.next_offset({"tick": 0}, None) == {"tick": 1}


def test_single_drain_waits_for_a_throttled_queue_and_ends_without_knowing_the_rest(
    broker: BrokerThread, job: SyphonJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A service that asks for ten seconds gets them, and a drain that failed at once would lose its summary."""
    clock = SleepingClock()
    monkeypatch.setattr("pairbus.spark.syphon_job.source.time", clock)
    reader = single_drain(job, ["full"])
    with broker.namespace().outage("throttle", entity="full"):
        assert reader.next_offset({"tick": 0}, None) == {"tick": 0}
        assert 75 <= clock.now_s < 90
        assert len(caplog.records) == 9, "one look in ten seconds"
        assert job.location.look(job.run).has_ended
        assert count_left(job, ["full"]) is None
    after = single_drain(job, ["full"])
    assert after.next_offset({"tick": 0}, None) == {"tick": 1}


def test_queue_that_refuses_the_look_does_not_hold_up_the_others(broker: BrokerThread, job: SyphonJob) -> None:
    """One disabled queue is no reason to leave the messages of nine others where they are."""
    with broker.namespace().outage("throttle", entity="empty"):
        assert single_drain(job, ["empty", "full"]).next_offset({"tick": 0}, None) == {"tick": 1}


def test_single_drain_of_queues_that_do_not_exist_is_over(job: SyphonJob) -> None:
    """Backlog queues are deleted after an outage, while the command still names ten of them."""
    reader = single_drain(job, ["empty", "deleted"])
    assert reader.next_offset({"tick": 0}, None) == {"tick": 0}
    assert job.location.look(job.run).has_ended
    assert count_left(job, ["empty", "deleted"]) == 0


@pytest.mark.parametrize("fault", REFUSALS)
def test_queue_that_refuses_to_be_counted_is_not_empty(broker: BrokerThread, job: SyphonJob, fault: str) -> None:
    """The count decides the exit code of the command: it must not be 0 when nobody knows."""
    assert count_left(job, ["full", "empty"]) == 7
    with broker.namespace().outage(fault, entity="empty"):
        assert count_left(job, ["full", "empty"]) is None
    with broker.namespace().outage("refuse"):
        assert count_left(job, ["full", "empty"]) is None


@pytest.mark.parametrize("fault", ["throttle", "internal-error", "time-out"])
def test_trouble_that_passes_does_not_keep_a_syphon_from_starting(
    broker: BrokerThread, job: SyphonJob, fault: str
) -> None:
    """A syphon is started after an outage, when the secondary is busiest: a throttle is no wrong setting."""
    with broker.namespace().outage(fault):
        check(job, ["full", "empty"])


def test_queues_that_cannot_be_read_at_all_are_told_at_the_start(broker: BrokerThread, job: SyphonJob) -> None:
    """Waiting does not heal this: somebody has to name other queues, or to enable these."""
    disabled = pytest.raises(ConfigError, match=r"none of the 2 queues can be read: full: .*entity-disabled")
    with broker.namespace().outage("disable"), disabled:
        check(job, ["full", "empty"])
    with pytest.raises(ConfigError, match=r"none of the 1 queues can be read: deleted: .*not-found"):
        check(job, ["deleted"])
