"""A stream staged on Azure Blob: how often a task asks the storage, and what happens while that is away."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from pairbus.errors import ConfigError
from pairbus.spark.staging.stage_file import StageWriter
from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.queues import bodies_in, put, text_message
from tests.spark.stream_world import Stream
from tests.storage.azurites import Azurite, Door
from tests.storage.fixtures import PLACE

pytestmark = pytest.mark.node

CALLS_MAX = 7  # for each task and batch
DEAD_S = 90.0
UNLOCKED_S = 60.0
WRONG_KEY = "d3Jvbmc="  # holds letters that no random name of a container has
OPEN_KEY = "open-secret"


@pytest.fixture
def place(azurite: Azurite) -> str:
    return azurite.new_container(f"t-{uuid.uuid4().hex[:12]}") + "/staging"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requests to the storage, as they go out."""
    made: list[str] = []
    send = requests.Session.send

    def counted(session: requests.Session, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        made.append(f"{request.method} {request.path_url}")
        return send(session, request, **kwargs)

    monkeypatch.setattr(requests.Session, "send", counted)
    return made


def stream_at(broker: BrokerProcess, queue: str, place: str, **given: str) -> Stream:
    return Stream(broker, queue, place, storageCredential=PLACE, **given)


@pytest.mark.parametrize("tasks", [2, 4])
def test_a_task_makes_at_most_seven_calls(
    tasks: int, broker: BrokerProcess, queue_name: str, place: str, calls: list[str]
) -> None:
    """Tasks of a batch at the same time, each of which seals: a task reads the seals that came before its own, and no
    task reads a stage of another, or its own again."""
    stream = stream_at(broker, queue_name, place, partitions=str(tasks), maxMessagesPerBatch="100")
    per_batch = []
    for _ in range(4):
        stream.send(*(uuid.uuid4().hex for _ in range(100)))
        partitions = stream.begin()
        calls.clear()
        with ThreadPoolExecutor(tasks) as workers:
            results = list(workers.map(stream.task, partitions))
        per_batch.append(len(calls))
        assert stream.end(results) and all(results), "each task has sealed messages"
    assert max(per_batch[1:]) <= CALLS_MAX * tasks, f"{per_batch}, the last ones were {calls}"
    assert not [call for call in calls if call.startswith("GET") and "/stages/" in call]


def test_a_batch_of_one_task_needs_no_list(
    broker: BrokerProcess, queue_name: str, place: str, calls: list[str]
) -> None:
    """Neither the task nor the driver lists objects: a list takes longer the more objects the location has."""
    stream = stream_at(broker, queue_name, place, partitions="1")
    for text in ("a", "b", "c"):
        stream.send(text)
        if text == "c":
            calls.clear()
        assert stream.batch() == [text.encode()]
    assert not [call for call in calls if "comp=list" in call]
    assert len(calls) <= 25, calls


@pytest.mark.parametrize(
    "change, why",
    [
        ({"stagingLocation": "nobody-made-it"}, "option stagingLocation: .* has no container 'nobody-made-it'"),
        ({"storageCredential": "wrong key"}, "option stagingLocation: .*option storageCredential .* is refused"),
        ({"storageCredential": "no right"}, "option stagingLocation: .* lacks a right"),
        ({"storageCredential": "env:NOT_SET"}, "nothing in env:NOT_SET on host"),
        ({"storageCredential": f"AccountKey={OPEN_KEY}"}, "option storageCredential: give the place of the secret"),
    ],
)
def test_bad_storage_is_told_before_a_message_is_touched(
    change: dict[str, str],
    why: str,
    broker: BrokerProcess,
    queue_name: str,
    place: str,
    azurite: Azurite,
    tmp_path: Path,
) -> None:
    """The driver tells it, at the start of a query."""
    (tmp_path / "wrong key").write_text(f"AccountName=devstoreaccount1;AccountKey={WRONG_KEY}")
    (tmp_path / "no right").write_text(azurite.sas("rl"))
    given = {"storageCredential": PLACE}
    for name, value in change.items():
        given[name] = f"@{tmp_path / value}" if (tmp_path / value).exists() else value
    location = place.replace(place.split("/")[4], given.pop("stagingLocation", place.split("/")[4]))
    put(broker, queue_name, [text_message("a")])
    with pytest.raises(ConfigError, match=why) as told:
        Stream(broker, queue_name, location, **given).begin()
    assert WRONG_KEY not in str(told.value) and OPEN_KEY not in str(told.value)
    assert bodies_in(broker, queue_name) == [b"a"]


@pytest.fixture
def door(azurite: Azurite) -> Iterator[Door]:
    with Door(azurite.port) as door:
        yield door


@pytest.mark.parametrize("away_s", [1.0, pytest.param(60.0, marks=[pytest.mark.deep, pytest.mark.slow])])
def test_a_storage_that_is_away_is_waited_for_and_nothing_is_lost(
    away_s: float,
    broker: BrokerProcess,
    queue_name: str,
    place: str,
    azurite: Azurite,
    door: Door,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The storage goes away when messages are received, under their locks, and loses answers when it is back."""
    finish = StageWriter.finish

    def away(stage: StageWriter) -> None:
        door.shut()
        threading.Timer(away_s, door.open).start()
        door.lose_every = 3
        finish(stage)

    behind = place.replace(str(azurite.port), str(door.port))
    stream = stream_at(broker, queue_name, behind, partitions="1", patienceSeconds="120")
    stream.send("a", "b", "c")
    (partition,) = stream.begin()
    with monkeypatch.context() as patch:
        patch.setattr(StageWriter, "finish", away)
        rows = stream.task(partition)
    assert sorted(stream.end([rows])) == [b"a", b"b", b"c"]
    assert door.lost
    stream.restart()
    assert sorted(stream.drain()) == [b"a", b"b", b"c"], "no message enters twice"
    assert bodies_in(broker, queue_name) == [], "redelivered messages are completed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("when the stage is on the disk, before the seal", marks=pytest.mark.deep),
        "when it is sealed, before it is completed",
    ],
)
def test_each_message_comes_once_when_a_task_is_killed(
    point: str, broker: BrokerProcess, make_queue: MakeQueue, place: str, tmp_path: Path
) -> None:
    """The driver is gone too: a new one repeats the open batch, then goes on until the queue is empty."""
    queue = make_queue(lock_duration=timedelta(seconds=5))
    stream = stream_at(broker, queue, place, maxMessagesPerBatch="20")
    sent = [f"{number:03d}" for number in range(30)]
    stream.send(*sent)
    file = tmp_path / "task"
    file.write_bytes(pickle.dumps((stream.reader, stream.begin()[0])))
    child = [sys.executable, "-m", "tests.spark.stream_child", str(file), point]
    assert subprocess.run(child, timeout=DEAD_S, check=False).returncode == -9
    stream.restart()
    deadline = time.monotonic() + UNLOCKED_S
    while len(stream.bodies) < len(sent) or bodies_in(broker, queue):
        assert time.monotonic() < deadline, f"{len(stream.bodies)} of {len(sent)} messages came"
        stream.batch()
    assert sorted(stream.bodies) == [text.encode() for text in sent]
