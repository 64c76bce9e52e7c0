"""Background tasks go on after anything that can happen to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pairbus.client import background
from pairbus.client.errors import PairingUnauthorized, SecondaryUnreachable
from pairbus.client.pinger import Pinger
from pairbus.pairing.events import Paired
from pairbus.pairing.failover import State
from pairbus.spool.forwarder import Forwarder
from pairbus.syphon import Syphon
from pairbus.transport import tasks
from tests.client.world import Stage, message, until
from tests.scripted.script import Reject
from tests.sdk.flavours import Flavour


async def test_ping_that_fails_unexpectedly_is_repeated(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of certificates that was replaced at that moment, a bug: the entity must not stay away for ever."""
    calls, genuine = [], Pinger.ping

    async def ping(self: Pinger, path: str, timeout_s: float) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise LookupError("unheard of")
        await genuine(self, path, timeout_s)

    monkeypatch.setattr(Pinger, "ping", ping)
    client = stage.client(flavour)
    rule = stage.primary.on("transfer", Reject("amqp:internal-error"))
    await client.sender("orders").send(message())
    stage.primary.remove(rule)
    await client.until_state("orders", State.HEALTHY, 5.0)
    assert len(calls) >= 2


@pytest.mark.parametrize("work", [Syphon, Forwarder], ids=["syphon", "forwarder"])
async def test_what_ends_by_a_bug_begins_again(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, work: Any
) -> None:
    """If a task did not begin again, messages would stay in backlog or spool until the process is restarted."""
    monkeypatch.setattr(tasks, "BEGIN_AGAIN_S", 0.01)
    genuine, runs = work.run, []

    async def run(self: Any) -> None:
        runs.append(self)
        if len(runs) == 1:
            raise LookupError("a bug")
        await genuine(self)

    monkeypatch.setattr(work, "run", run)
    client = stage.client(flavour, enable_syphon=True, spool_dir=tmp_path)
    await client.pair()
    await until(lambda: len(runs) == 2, "it runs again")


@pytest.mark.parametrize("enable_syphon", [False, True])
async def test_a_client_that_started_alone_pairs_whatever_it_is_told_meanwhile(
    stage: Stage,
    flavour: Flavour,
    enable_syphon: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A key that is rotated during the outage is a refusal today, and not tomorrow. Each reason is logged once.
    The syphon, where it is wanted, begins then."""
    syphons: list[Syphon] = []

    async def run(self: Syphon) -> None:
        syphons.append(self)

    monkeypatch.setattr(Syphon, "run", run)
    answers: list[Exception] = [
        SecondaryUnreachable("fabrikam", "no answer"),
        SecondaryUnreachable("fabrikam", "no answer"),
        SecondaryUnreachable("fabrikam", "no answer"),
        PairingUnauthorized("fabrikam", "old key"),
    ]
    monkeypatch.setattr(background, "PAIR_AGAIN_S", 0.01)

    async def provision(*args: Any) -> list[str]:
        if answers:
            raise answers.pop(0)
        return ["stage/x-servicebus-transfer/0"]

    monkeypatch.setattr("pairbus.client.engine.provision", provision)
    client = stage.client(flavour, create_backlog_queues=True, require_secondary=False, enable_syphon=enable_syphon)
    await client.pair()
    await client.until_event(Paired, 5.0)
    assert client.client.options.backlog_queue_count == 1
    told = [record.getMessage() for record in caplog.records if "not paired yet" in record.getMessage()]
    await until(lambda: len(syphons) == enable_syphon, "the syphon runs")
    assert len(told) == 2 and "no answer" in told[0] and "old key" in told[1]


async def test_queue_that_cannot_be_created_delays_no_pairing(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pair begins with the others. When the queue is created later, sends and the syphon use it too."""
    monkeypatch.setattr(background, "PAIR_AGAIN_S", 0.01)
    answers: list[list[str] | Exception] = [list(Stage.BACKLOG[:1]), SecondaryUnreachable("fabrikam", "no answer")]

    async def provision(*args: Any) -> list[str]:
        answer = answers.pop(0) if answers else list(Stage.BACKLOG)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("pairbus.client.engine.provision", provision)
    client = stage.client(flavour, create_backlog_queues=True, enable_syphon=True)
    await client.pair()
    await until(lambda: len(client.told(Paired)) == 2, "it is paired with more queues")
    assert [told.backlog_queues for told in client.told(Paired)] == [1, 2]
    assert client.client.options.backlog_queue_count == 2
    assert client.client._state.pair.rotation.queues == list(Stage.BACKLOG)
