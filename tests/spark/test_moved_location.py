"""A checkpoint and its staging location belong together: the pair goes on, and any other pair is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pairbus.errors import ConfigError
from pairbus.spark import options as stream_options
from pairbus.spark.source.entities import entities_of
from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.queues import bodies_in, options, put, text_message
from tests.spark.stream_world import Stream, new_stream

REFUSED = r"option stagingLocation: .* is not the location of this query .*give that one"


@pytest.fixture
def interrupted(broker: BrokerProcess, queue_name: str, tmp_path: Path) -> Stream:
    """A stream whose second batch is sealed and completed, and not committed by Spark."""
    stream = new_stream(broker, queue_name, tmp_path, partitions="1")
    stream.send("a", "b")
    assert stream.batch() == [b"a", b"b"]
    stream.send("c", "d")
    (partition,) = stream.begin()
    stream.task(partition)
    return stream


def test_checkpoint_with_another_location_is_refused(interrupted: Stream, tmp_path: Path) -> None:
    """It would plan the interrupted batch anew, and its sealed messages would never be read."""
    other = interrupted.elsewhere(tmp_path / "other")
    with pytest.raises(ConfigError, match=REFUSED):
        other.begin()
    other.open = None
    with pytest.raises(ConfigError, match=REFUSED):
        other.begin()
    assert not (tmp_path / "other").exists(), "nothing is written into a location that is refused"
    interrupted.restart()
    assert interrupted.batch() == [b"c", b"d"]


def test_first_batch_is_refused_elsewhere_too(broker: BrokerProcess, queue_name: str, tmp_path: Path) -> None:
    """Batch 1 of a new checkpoint: a number alone would fit any empty location."""
    stream = new_stream(broker, queue_name, tmp_path)
    stream.send("a")
    for partition in stream.begin():
        stream.task(partition)
    with pytest.raises(ConfigError, match=REFUSED):
        stream.elsewhere(tmp_path / "other").begin()


def test_refusal_does_not_stop_the_query_of_that_location(
    interrupted: Stream, broker: BrokerProcess, tmp_path: Path
) -> None:
    """The location that was given by mistake has a query of its own, which runs on."""
    rightful = new_stream(broker, interrupted.entity, tmp_path)
    rightful.send("e")
    partitions = rightful.begin()
    wrong = interrupted.elsewhere(rightful.location)
    wrong.reader.prepareForTriggerAvailableNow()
    with pytest.raises(ConfigError, match=REFUSED):
        wrong.begin()
    rightful.end([rightful.task(partition) for partition in partitions])
    assert rightful.bodies == [b"e"]


def test_moved_location_goes_on(interrupted: Stream, tmp_path: Path) -> None:
    """The id is in the location: another path, or another machine, makes no difference."""
    shutil.move(interrupted.location, tmp_path / "moved")
    moved = interrupted.elsewhere(tmp_path / "moved")
    assert moved.batch() == [b"c", b"d"]
    moved.send("e")
    assert moved.drain() == [b"c", b"d", b"e"]


def test_old_copy_of_a_location_is_refused(interrupted: Stream, tmp_path: Path) -> None:
    """A backup has the id, but it never knew the batches after it was made."""
    shutil.copytree(interrupted.location, tmp_path / "backup")
    interrupted.batch()
    for text in ("e", "f"):
        interrupted.send(text)
        interrupted.batch()
    with pytest.raises(ConfigError, match=r"has micro-batch 4, which was never planned there"):
        interrupted.elsewhere(tmp_path / "backup").begin()


# ── checkpoints and locations of earlier releases ──


def of_earlier_release(location: Path) -> None:
    """Take away what releases up to 0.3, which name no location in offsets, do not write."""
    (location / "location.json").unlink()
    for pattern, field in (("owners/*", "accepts_unnamed"), ("plans/*", "notes_reads")):
        for path in location.glob(pattern):
            values = json.loads(path.read_text())
            del values[field]
            path.write_text(json.dumps(values))
    shutil.rmtree(location / "read", ignore_errors=True)


def unnamed(offset: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if offset is None else {"batch": offset["batch"]}


def downgraded(stream: Stream) -> Stream:
    of_earlier_release(Path(stream.location))
    stream.committed, stream.open = unnamed(stream.committed), unnamed(stream.open)
    stream.restart()
    return stream


def test_location_of_an_earlier_release_is_adopted(interrupted: Stream, tmp_path: Path) -> None:
    """Its open batch is repeated, and the next offset names the location; a restart before that goes on as well."""
    stream = downgraded(interrupted)
    assert stream.batch() == [b"c", b"d"]
    stream.restart()
    stream.send("e")
    assert stream.batch() == [b"e"]
    assert stream.committed == {"batch": 3, "location": stream.book.identity.id}
    with pytest.raises(ConfigError, match=REFUSED):
        stream.elsewhere(tmp_path / "other").begin()


def test_batch_that_an_earlier_release_ran_counts_as_read(interrupted: Stream) -> None:
    """Its tasks noted no reads, and Spark has committed it: none of its messages enters again."""
    interrupted.batch()
    stream = downgraded(interrupted)
    stream.send("e")
    assert stream.drain() == [b"a", b"b", b"c", b"d", b"e"]


def test_offset_without_location_is_refused_by_new_locations(interrupted: Stream, tmp_path: Path) -> None:
    """Neither an empty location nor one that has named its offsets from the beginning can be the one it had."""
    stream = downgraded(interrupted)
    with pytest.raises(ConfigError, match=REFUSED):
        stream.elsewhere(tmp_path / "empty").begin()
    other = Stream(stream._broker, stream.entity, tmp_path / "other")
    for text in ("e", "f", "g"):
        other.send(text)
        other.batch()
    with pytest.raises(ConfigError, match=REFUSED):
        stream.elsewhere(tmp_path / "other").begin()


# ── several entities ──


@pytest.fixture
def queues(make_queue: MakeQueue) -> list[str]:
    return [make_queue() for _ in range(3)]


@pytest.fixture
def on_local_master(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The state folder of a user whose Spark runs on this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(stream_options, "runs_on_local_master", lambda: True)
    return tmp_path / "pairbus" / "staging"


def send_to(broker: BrokerProcess, queue: str, *texts: str) -> None:
    put(broker, queue, [text_message(text) for text in texts])


def check_growth(broker: BrokerProcess, queues: list[str], location: str) -> None:
    """Interrupt a stream of two queues, and go on with three."""
    one, two, three = queues
    stream = Stream(broker, f"{one},{two}", location, partitions="1")
    send_to(broker, one, "a")
    assert stream.batch() == [b"a"]
    send_to(broker, one, "b")
    send_to(broker, two, "c")
    for partition in stream.begin():
        stream.task(partition)
    stream.reader.stop()
    grown = stream.elsewhere(location, ",".join(queues))
    send_to(broker, three, "d")
    assert sorted(grown.batch()) == [b"b", b"c"], "the interrupted batch, from the folders that have it"
    assert sorted(grown.drain()) == [b"b", b"c", b"d"]
    assert all(bodies_in(broker, queue) == [] for queue in queues)
    grown.reader.stop()


def test_growing_list_keeps_the_folders(broker: BrokerProcess, queues: list[str], tmp_path: Path) -> None:
    check_growth(broker, queues, str(tmp_path / "staging"))


def test_growing_list_keeps_the_default_folders(
    broker: BrokerProcess, queues: list[str], on_local_master: Path
) -> None:
    """Each entity has its folder, the same one alone and in every list."""
    check_growth(broker, queues, "")
    alone = options(broker, "stream", entity=queues[0]).staging_location
    assert sorted(map(str, on_local_master.iterdir()))[0].startswith(str(on_local_master))
    assert alone is not None and Path(alone).parent == on_local_master and Path(alone).is_dir()
    assert len(list(on_local_master.iterdir())) == 3, "no folder has the name of a list"


def test_default_folder_of_a_list_of_an_earlier_release_is_kept(
    broker: BrokerProcess, queues: list[str], on_local_master: Path
) -> None:
    """It is named by the whole list; the same list goes on there."""
    names = queues[:2]
    given = options(broker, "stream", entity=",".join(names))
    earlier = given._default_location(*sorted(names))
    stream = Stream(broker, ",".join(names), earlier, partitions="1")
    for queue in names:
        send_to(broker, queue, queue)
    for partition in stream.begin():
        stream.task(partition)
    for folder in Path(earlier).iterdir():
        of_earlier_release(folder)
    stream.committed = {queue: offset["batch"] for queue, offset in (stream.committed or {}).items()}
    stream.open = {queue: offset["batch"] for queue, offset in (stream.open or {}).items()}
    upgraded = stream.elsewhere("")
    assert upgraded.batch() == [queue.encode() for queue in sorted(names)]
    upgraded.reader.stop()
    grown = upgraded.elsewhere("", ",".join(queues))
    with pytest.raises(ConfigError, match=REFUSED):
        grown.begin()
    grown.reader.stop()
    named = upgraded.elsewhere(earlier, ",".join(queues))
    send_to(broker, queues[2], "new")
    assert named.drain() == [b"new"]


def test_several_entities_on_azure_need_no_home(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user of a container often has no home, and no folder of this host is used."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)

    def nobody(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nobody)
    place = "abfss://staging@contoso.dfs.core.windows.net/orders"
    given = options(broker, "stream", entity="orders,invoices", stagingLocation=place)
    found = [given.for_entity(entity).staging_location for entity in entities_of(given)]
    assert [str(one).rpartition("-")[0] for one in found] == [f"{place}/orders", f"{place}/invoices"]
