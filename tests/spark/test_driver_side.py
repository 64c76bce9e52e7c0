"""Calls where the driver of a Connect server is: JSON both ways, and values of declared types only."""

from __future__ import annotations

import base64
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from pairbus.errors import ConfigError, LedgerNewer, PairbusError, StorageError
from pairbus.spark.connections import Secret
from pairbus.spark.driver_side import CallSource, DriverSide, _arguments, function_of, options_of
from pairbus.spark.plain_values import from_plain, to_plain
from pairbus.spark.syphon_job import arguments as syphon_job
from pairbus.spark.syphon_job import journal_rows, looks, supervisor
from pairbus.spark.syphon_job.job import SyphonJob
from pairbus.spark.syphon_job.journal import Location, TaskReport
from pairbus.spark.syphon_job.rounds import Quotas
from pairbus.syphon.decide.redriving import Redriving
from pairbus.syphon.decide.settings import SyphonSettings
from pairbus.transport import ConnectionLost

PLACE = Location("abfss://box@contoso.dfs.core.windows.net/journal", "env:STORAGE")
JOB = SyphonJob(
    Secret("env:CONTOSO"),
    Secret("fabrikam.servicebus.windows.net", "secondary", "default"),
    PLACE,
    SyphonSettings(max_messages_per_second=3.5),
    run="run",
    ledger="/ledger",
    redriving=Redriving("orders", "contoso/orders", None, new_ids=True),
)
CALLS: list[tuple[Callable[..., object], tuple[Any, ...]]] = [
    (supervisor._check, (JOB, ["a", "b"])),
    (looks.count_left, (JOB, ["a"])),
    (looks.find_new, (JOB, "contoso", ["a"])),
    (supervisor.look_at_reports, (PLACE, "run", {"1-a", "2-b"})),
    (supervisor.look_s_of, (PLACE,)),
    (PLACE.prepare, ("run",)),
    (PLACE.ask_to_stop, ("run",)),
    (syphon_job.authority_of, (JOB.primary,)),
    (syphon_job.default_journal, ("a", "b", "c")),
    (syphon_job.location_of, (PLACE.root, "env:STORAGE")),
    (journal_rows.close_days, (PLACE, "2026-11-15")),
]


class FakeConnect:
    """A session of Connect whose server answers with a schema that the test makes."""

    def __init__(self, answer: Callable[[dict[str, str]], StructType]) -> None:
        self._answer = answer
        self.read = self.dataSource = self
        self.schema = StructType()

    def register(self, kind: object) -> None: ...

    def format(self, name: str) -> FakeConnect:
        return self

    def options(self, **options: str) -> FakeConnect:
        self.schema = StructType.fromJson(json.loads(self._answer(options).json()))
        return self

    def load(self) -> FakeConnect:
        return self


FakeConnect.__module__ = "pyspark.sql.connect.session"


def driver(answer: Callable[[dict[str, str]], StructType]) -> DriverSide:
    side = DriverSide(FakeConnect(answer))  # type: ignore[arg-type]
    assert side.is_elsewhere
    return side


@pytest.fixture
def elsewhere() -> DriverSide:
    """A driver behind a server that runs the call."""
    return driver(lambda options: CallSource(options).schema())


class Harm:
    """Pickle that makes a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_answer_of_a_server_runs_no_code(tmp_path: Path) -> None:
    """A server that was taken over must not take over its clients."""
    text = base64.b64encode(pickle.dumps((True, Harm(tmp_path / "harm")))).decode()
    evil = StructType([StructField("result", StringType(), metadata={"result": text})])
    with pytest.raises(ValueError, match="Expecting value"):
        driver(lambda options: evil).call(supervisor._cores)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(("function", "arguments"), CALLS, ids=lambda one: getattr(one, "__name__", ""))
def test_arguments_arrive_as_they_were_given(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """Each function that is called where the driver is, with arguments of every type that it takes."""
    call = json.loads(options_of(function, *arguments)["call"])
    found = function_of(call["function"])
    owner = getattr(function, "__self__", None)
    expected = list(arguments) if owner is None else [owner, *arguments]
    assert list(_arguments(found, call["arguments"])) == expected


def test_results_come_back(elsewhere: DriverSide, tmp_path: Path) -> None:
    """In the types that the function declares."""
    assert elsewhere.call(supervisor._cores) == os.cpu_count()
    assert isinstance(elsewhere.call(syphon_job.default_journal, "a", "b"), Path)
    place = elsewhere.call(syphon_job.location_of, str(tmp_path), None)
    elsewhere.call(place.prepare, "run")
    report = TaskReport(3, "queue", moved=7, busy=True)
    reports, is_over = elsewhere.call(supervisor.look_at_reports, place, "run", set())
    assert (list(reports), is_over) == ([], False)
    assert elsewhere.call(journal_rows.find, place) == journal_rows.JournalParts([], [], {})
    assert from_plain(to_plain([("3-a", report)]), list[tuple[str, TaskReport]]) == [("3-a", report)]


@pytest.mark.parametrize(
    ("raised", "arrives"),
    [
        (ConfigError("not so"), ConfigError),
        (LedgerNewer("upgrade"), LedgerNewer),
        (StorageError("the storage is away"), StorageError),
        (ConnectionLost("gone", condition="amqp:x"), PairbusError),
        (FileNotFoundError(2, "no such file"), OSError),
    ],
)
def test_error_of_a_call_comes_back(
    raised: Exception, arrives: type[Exception], elsewhere: DriverSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller must not care where the driver is."""

    def fails(place: Location) -> None:
        raise raised

    fails.__module__, fails.__qualname__ = journal_rows.__name__, "find"
    monkeypatch.setattr(journal_rows, "find", fails)
    with pytest.raises(arrives, match=str(raised.args[-1])):
        elsewhere.call(fails, PLACE)


@pytest.mark.parametrize("name", ["os:system", "pairbus.spark.driver_side:json.dumps", "pairbus.errors:ConfigError"])
def test_server_calls_functions_of_the_package_only(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a function of pairbus"):
        function_of(name)


@pytest.mark.parametrize(
    ("value", "kind"),
    [("1", int), (True, int), ([1], list[str]), ({"tick": 1, "colour": 2}, TaskReport), (["a"], tuple[str, str])],
)
def test_json_of_another_form_is_refused(value: object, kind: object) -> None:
    with pytest.raises(TypeError, match="is not"):
        from_plain(value, kind)


def test_settings_of_a_job_reach_its_tasks_unchanged() -> None:
    """One form from the caller's arguments to a task; a setting that got lost would be the default on executors."""
    job = replace(JOB, queues={"a": 1_000, "b": None}, quotas=Quotas(lanes=2, tasks=3), once=True, ca_file="/ca.pem")
    assert SyphonJob.from_options(job.to_options()) == job
