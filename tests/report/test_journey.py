"""The way of one message through every hop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pairbus.pairing import events
from pairbus.report.model import Hop
from tests.report.worlds import NOON_S, QUEUES, Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ID = 'order "17" ü'


@pytest.mark.spark
def test_a_message_is_followed_from_the_spool_to_its_entity(spark: SparkSession, tmp_path: Path) -> None:
    """By its id, which may need escapes; in the order of time, whoever wrote it; compacted rows are not hops again."""
    from pairbus.report.journey import journey
    from pairbus.spark.syphon_job.compaction import compact

    api, syphon = Writer("api", 1, "aaaaaaaa"), Writer("syphon", 2, "bbbbbbbb")
    syphon.event(NOON_S + 60.5, events.MaybeDuplicated.late("orders", ID, 60.5))
    syphon.event(NOON_S + 60.5, events.Moved("orders", QUEUES[0], 2, (ID, "another")))
    syphon.event(NOON_S + 90, events.DeadLettered(QUEUES[0], ID, "Expired", "it was too late"))
    api.event(NOON_S, events.Diverted("orders", "spool", 2, ("another", ID), True))
    api.event(NOON_S + 30, events.SpoolForwarded("orders", 1, QUEUES[0], 0, (ID,)))
    api.event(NOON_S + 31, events.SpoolForwarded("orders", 1, "primary", 0, ("another",)))
    api.lines.append(api.lines[-1][:-9])
    for writer in (api, syphon):
        writer.write(tmp_path / "ledger")
    expected = [
        Hop("2026-03-01T12:00:00.000Z", "spooled", "spool", "api", 0.0, "outcome_unknown: true"),
        Hop("2026-03-01T12:00:30.000Z", "forwarded", QUEUES[0], "api", 30.0, "waiting: 0"),
        Hop(
            *("2026-03-01T12:01:00.500Z", "may be there twice", "orders", "syphon", 60.5),
            "reason: it came home after 60s",
        ),
        Hop("2026-03-01T12:01:00.500Z", "moved", "orders", "syphon", 60.5, ""),
        Hop(
            "2026-03-01T12:01:30.000Z",
            "dead-lettered",
            QUEUES[0],
            "syphon",
            90.0,
            "reason: Expired, description: it was too late",
        ),
    ]
    assert journey(spark, [tmp_path / "ledger"], ID) == expected
    compact(spark, tmp_path / "location", ledgers=[tmp_path / "ledger"])
    assert journey(spark, [tmp_path / "ledger", tmp_path / "location"], ID) == expected
    assert journey(spark, [tmp_path / "ledger"], "order") == []
    assert [hop.where for hop in journey(spark, [tmp_path / "ledger"], "another")] == ["spool", "orders", "orders"]
