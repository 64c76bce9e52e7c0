"""Follows the journey of one message through all rows that have its id."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pairbus.ledger.rows import Row
from pairbus.ledger.table.lines import NAMES, usable
from pairbus.report.model import Hop
from pairbus.report.passes.sources import find_sources
from pairbus.report.passes.stages import json_lines, ledger_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOPS_MAX = 10_000  # an id that is not unique, such as an empty text, may be in every row

WORDS = {
    "Diverted": "diverted",
    "SpoolForwarded": "forwarded",
    "SpoolRefused": "refused, stays in the spool",
    "Moved": "moved",
    "MaybeDuplicated": "may be there twice",
    "DeadLettered": "dead-lettered",
}


def journey(spark: SparkSession, ledgers: Sequence[str | PathLike[str]], message_id: str) -> list[Hop]:
    """Return the hops of a message in the order of time; empty when no ledger knows the message. Damaged lines are left
    out.

    Spark looks for the id in the lines, with and without JSON's escapes; only lines that have it are parsed.
    """
    sources = find_sources(ledgers, spark)
    rows: list[Row] = []
    if sources.lines:
        texts = json_lines(spark, sources.lines).select("value")
        escaped = json.dumps(message_id)
        has_id = F.col("value").contains(escaped) | F.col("value").contains(f'"{message_id}"')
        for line in texts.where(has_id).limit(HOPS_MAX).collect():
            try:
                rows.append(usable(line["value"].encode()))
            except ValueError:
                continue  # the report names the line
    tables = [ledger_tables(spark, sources.tables)] if sources.tables else []
    tables += [spark.read.format(name).load(location) for location, name in sources.others]
    for table in tables:
        message_rows = table.where(F.col("message_id") == message_id).select(*NAMES).limit(HOPS_MAX)
        for row in message_rows.collect():
            values = {name: value for name, value in row.asDict().items() if value is not None}
            rows.append(Row(**values | {"details": json.loads(values.get("details", "{}"))}))
    return hops(row for row in rows if row.message_id == message_id)


def hops(rows: Iterable[Row]) -> list[Hop]:
    """Return the hops from the rows of one message. A row in a ledger and in its compacted form is one hop."""
    steps = sorted({_step(row) for row in rows})
    first_s = datetime.fromisoformat(steps[0][0]).timestamp() if steps else 0.0
    return [
        Hop(time, event, place, client, round(datetime.fromisoformat(time).timestamp() - first_s, 3), details)
        for time, event, place, client, details in steps
    ]


def _step(row: Row) -> tuple[str, str, str, str, str]:
    event = row.event or row.kind
    event_words = "spooled" if event == "Diverted" and row.queue == "spool" else WORDS.get(event, event)
    details_left = dict(row.details or {})
    # A moved message is in its entity, and so is one that was forwarded to the primary; any other one is in a queue.
    to = details_left.pop("to", None) if event == "SpoolForwarded" else None
    place: str | None
    if to not in (None, "primary"):
        place = str(to)
    elif event in ("Moved", "SpoolForwarded", "MaybeDuplicated"):
        place = row.entity or row.queue
    else:
        place = row.queue or row.entity
    details = ", ".join(f"{name}: {_plain(value)}" for name, value in details_left.items() if value not in ("", None))
    return row.time, event_words, place or "", row.client, details


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
