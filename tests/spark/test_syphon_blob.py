"""A syphon whose journal is on Azure Blob, without Spark: the objects of a round, and rounds without the storage."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pairbus.errors import ConfigError
from pairbus.spark import compact
from pairbus.spark.syphon_job.arguments import location_of
from pairbus.spark.syphon_job.journal import MOVED, JournalRow, Location, encode_rows
from pairbus.spark.syphon_job.journal_rows import close_days, find
from tests.spark.syphon_world import SyphonWorld, syphon_world
from tests.storage.azurites import Azurite
from tests.storage.fixtures import PLACE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyphonWorld]:
    with syphon_world(tmp_path_factory.mktemp("syphon"), queues=1, orders={}) as world:
        yield world


@pytest.fixture
def place(azurite: Azurite) -> Location:
    return Location(azurite.new_container(f"t-{uuid.uuid4().hex[:12]}") + "/journal", PLACE)


def test_every_message_is_in_the_journal_when_it_is_home(world: SyphonWorld, place: Location) -> None:
    """The journal has one object for each append; the reports agree, and a closed day is not read again."""
    world.divert(30, "orders")
    job = world.job(location=place)
    reader = world.reader(job)
    for partition in reader.partitions({"tick": 0}, {"tick": 1}):
        list(reader.read(partition))
    found = find(place)
    lines = b"".join(place.storage.get(f"journal/{name}") or b"" for name in found.names).splitlines()
    assert {json.loads(line)["message_id"] for line in lines} == world.sent.keys() and len(lines) == 30
    assert sum(report.moved for _, report in place.look(job.run).read_reports()) == 30
    assert world.check("orders") == 0
    close_days(place, "9999-01-01")
    assert find(place).names == [] and len(find(place).closed) == 1


def test_unusable_journal_is_an_error_before_any_message_is_touched(azurite: Azurite) -> None:
    """A container that does not exist, a credential that is none, a store that is not supported."""
    for journal, credential, why in (
        (f"{azurite.url()}/nobody-made-it/x", PLACE, "journal: .* has no container 'nobody-made-it'"),
        (f"{azurite.url()}/some/x", "AccountKey=abc", "storage_credential: give the place"),
        ("s3://bucket/x", None, "S3 is not supported yet"),
    ):
        with pytest.raises(ConfigError, match=why):
            location_of(journal, credential)


@pytest.mark.spark
@pytest.mark.slow
def test_the_table_of_a_journal_on_blob_has_each_message_once(
    spark: SparkSession, azurite: Azurite, place: Location, tmp_path: Path
) -> None:
    """Spark has no file system for it: tasks read the objects, and the table goes where the caller says."""
    secret = tmp_path / "storage.txt"
    secret.write_text(azurite.connection_string)
    for attempt, numbers in (("a", range(50)), ("b", range(40, 60))):
        record = place.new_record(attempt, 0.0)
        for number in numbers:
            row = JournalRow(MOVED, "q/0", 1, number, f"m{number}", "orders", 9, 5, None, 7, attempt, None)
            record.append(b"".join(encode_rows([row])))
    with pytest.raises(ConfigError, match="tables: the journal is in"):
        compact(spark, str(place.root), storage_credential=f"@{secret}")
    done = compact(spark, str(place.root), tables=tmp_path / "tables", storage_credential=f"@{secret}")
    assert (done.moves, done.days) == (60, ("1970-01-01",))
    rows = spark.read.parquet(str(tmp_path / "tables" / "moves")).select("message_id", "attempts").collect()
    assert {row.message_id: row.attempts for row in rows} == {f"m{n}": 1 + (40 <= n < 50) for n in range(60)}
