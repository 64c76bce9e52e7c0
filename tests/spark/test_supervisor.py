"""The supervisor of the syphon's query, without Spark: trouble with the journal's location on the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from pairbus.errors import ConfigError, PairbusError, SparkGone, StorageError
from pairbus.spark.connections import Secret
from pairbus.spark.driver_side import DriverSide
from pairbus.spark.syphon_job import supervisor
from pairbus.spark.syphon_job.job import SyphonJob
from pairbus.spark.syphon_job.journal import Location, TaskReport
from pairbus.spark.syphon_job.rounds import Quotas
from pairbus.spark.syphon_job.supervisor import SparkSyphon
from pairbus.syphon.decide.settings import SyphonSettings

WITHIN_S = 30.0


class FakeQuery:
    """A query that runs until it is stopped."""

    def __init__(self) -> None:
        self.isActive = True
        self.status = {"isTriggerActive": False}

    def awaitTermination(self, timeout: int) -> bool:
        return not self.isActive

    def stop(self) -> None:
        self.isActive = False


class FakeSpark:
    """The calls of a session with which a query is started; remembers the queries."""

    def __init__(self) -> None:
        self.queries: list[FakeQuery] = []
        self.readStream = self.writeStream = self.dataSource = self.conf = self

    def get(self, name: str, default: str | None) -> str | None:
        return default

    def chained(self, *arguments: Any, **named: Any) -> FakeSpark:
        return self

    register = format = options = option = load = trigger = chained

    def start(self) -> FakeQuery:
        self.queries.append(FakeQuery())
        return self.queries[-1]


class Trouble:
    """The calls of the journal's location: some of them fail. `is_over` is set when one succeeds after that."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_over = threading.Event()
        self.reports: list[Exception] = []
        "Errors of the next looks at the reports."
        self.preparations: list[Exception | None] = []
        "Errors of the next preparations; None: the preparation succeeds."
        self._was_met = False
        prepare = Location.prepare

        def prepared(place: Location, run: str) -> None:
            self._raise(self.preparations)
            prepare(place, run)

        def looked(*_: object) -> tuple[list[tuple[str, TaskReport]], bool]:
            self._raise(self.reports)
            if self._was_met:
                self.is_over.set()
            return [], False

        patch.setattr(Location, "prepare", prepared)
        patch.setattr(supervisor, "look_at_reports", looked)
        patch.setattr(supervisor, "_check", lambda job, queues: None)
        patch.setattr(supervisor, "RESTART_S", 0.01)

    def _raise(self, errors: list[Any]) -> None:
        error = errors.pop(0) if errors else None
        if error is not None:
            self._was_met = True
            raise error


@pytest.fixture
def fake() -> FakeSpark:
    return FakeSpark()


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(monkeypatch)


@pytest.fixture
def begin(fake: FakeSpark, tmp_path: Path) -> Callable[..., SparkSyphon]:
    def begin(root: Path = tmp_path, *, once: bool = False, quotas: Quotas | None = None) -> SparkSyphon:
        secret = Secret("env:NOWHERE")
        place = Location(root)
        job = SyphonJob(secret, secret, place, SyphonSettings(), {"q": None}, quotas or Quotas(tasks=1), once=once)
        return SparkSyphon(cast(SparkSession, fake), job, checkpoint=tmp_path / "checkpoint").start()

    return begin


@pytest.mark.parametrize("error", [StorageError("the account is away"), OSError(116, "Stale file handle")])
@pytest.mark.parametrize("at_restart", [False, True])
def test_a_location_that_is_away_for_a_while_does_not_end_the_syphon(
    fake: FakeSpark, trouble: Trouble, begin: Callable[..., SparkSyphon], error: OSError, at_restart: bool
) -> None:
    """The journal may be on a share that blinks. The query is stopped, and a new one follows after a pause."""
    trouble.reports = [error] * 2  # the second one: for the last look at a query that has ended
    if at_restart:
        trouble.preparations = [None, error]
    syphon = begin()
    assert trouble.is_over.wait(WITHIN_S)
    assert syphon.restarts == (2 if at_restart else 1)
    assert list(syphon.problems) == [str(error)]
    assert [query.isActive for query in fake.queries] == [False, True]
    syphon.stop()
    assert syphon.wait(WITHIN_S)
    assert not fake.queries[-1].isActive


def test_a_setting_of_a_wrong_type_is_told_before_a_query_runs(
    fake: FakeSpark, trouble: Trouble, begin: Callable[..., SparkSyphon]
) -> None:
    """A worker of Spark would fail on it, again and again."""
    with pytest.raises(ConfigError, match=r"a setting of the syphon has the wrong type: '2.5' is not int"):
        begin(quotas=Quotas(tasks=1, max_messages=cast(int, 2.5)))
    assert fake.queries == []


def test_no_query_runs_on_when_the_supervisor_has_ended(
    fake: FakeSpark, trouble: Trouble, begin: Callable[..., SparkSyphon]
) -> None:
    """A refused key does not heal: the caller hears of it, and a query that went on could not be stopped by anybody."""
    trouble.reports = [ConfigError("the key is refused")]
    syphon = begin()
    with pytest.raises(ConfigError, match="the key is refused"):
        syphon.wait(WITHIN_S)
    assert [query.isActive for query in fake.queries] == [False]


def test_a_single_drain_gives_up_on_a_location_that_stays_away(
    fake: FakeSpark, trouble: Trouble, begin: Callable[..., SparkSyphon]
) -> None:
    """A single drain is to end."""
    trouble.reports = [StorageError("the account is away") for _ in range(2 * supervisor.FAILURES_MAX)]
    with pytest.raises(PairbusError, match="the query failed 5 times: the account is away"):
        begin(once=True).wait(WITHIN_S)
    assert [query.isActive for query in fake.queries] == [False] * supervisor.FAILURES_MAX


def test_a_location_that_was_never_written_is_a_mistake(
    fake: FakeSpark, trouble: Trouble, begin: Callable[..., SparkSyphon], tmp_path: Path
) -> None:
    """A wrong path must be told at once; only a location that was good before is waited for."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"the journal location .*file/below cannot be written: .*Not a directory"):
        begin(tmp_path / "file" / "below").wait(WITHIN_S)
    assert fake.queries == []


def test_a_server_that_is_gone_is_not_asked_to_stop_its_query(
    fake: FakeSpark, trouble: Trouble, begin: Callable[..., SparkSyphon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark Connect repeats each call to a server that is away for ten minutes: the command starts anew sooner."""
    monkeypatch.setattr(DriverSide, "call", lambda driver, function, *arguments: function(*arguments))
    monkeypatch.setattr("pairbus.spark.driver_side.is_remote", lambda session: True)
    trouble.reports = [ConnectionResetError("the server is gone"), AssertionError("asked again")]
    with pytest.raises(SparkGone, match="the server is gone"):
        begin().wait(WITHIN_S)
    assert [query.isActive for query in fake.queries] == [True]
