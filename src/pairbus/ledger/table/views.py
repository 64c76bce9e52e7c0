"""Registers SQL views on a ledger's table: outages, moves, bill lines, operations, by the rules of docs/report.md."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING

from pairbus.errors import ConfigError
from pairbus.ledger.rows import LOST_ROWS, SETTLED
from pairbus.ledger.table.listing import is_local
from pairbus.ledger.table.manifest import read_manifest
from pairbus.ledger.table.table import LOST_SETTLEMENTS, read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "ledger_rows"
"View of the table itself, which the other views use."

_TIME = "to_timestamp(time)"
_FILE = "try_cast(regexp_extract(source, '^[0-9-]{10}-.+-[0-9]+-[0-9a-f]{8}-([0-9]+)[.]jsonl$', 1) AS int)"
"Number of a row's file among those of its process; null when no ledger gave the file its name."
_PLACE = "file, time_without_file, source, position"
"Order in which a process wrote its rows; by time when not all of them have the number of their file."
_STARTS, _ENDS = "('Suspected', 'FailedOver')", "('Recovered', 'PairingCleared')"

_SETTLED = f"least(greatest(coalesce({LOST_SETTLEMENTS}, 0), 0), billable_operations)"
"Settlements that a row of lost rows stands for; they are operations of their own, because not every counting has them."
_METERED = f"SELECT *, CASE WHEN kind = '{LOST_ROWS}' THEN {_SETTLED} ELSE 0 END AS settled FROM {ROWS}"

_OPERATIONS = f"""
WITH metered AS (
  {_METERED} WHERE billable_operations IS NOT NULL
), counted AS (
  SELECT *, kind AS counted_as, greatest(coalesce(`count`, 0) - settled, 0) AS counted,
         billable_operations - settled AS billed, coalesce(bytes, 0) AS counted_bytes
  FROM metered
  UNION ALL
  SELECT *, '{SETTLED}', settled, settled, 0 FROM metered WHERE settled > 0
)
SELECT {_TIME} AS time, day, client, run, lower(namespace) AS namespace, side, lower(entity) AS entity,
       counted_as AS kind, cause, outcome, counted AS `count`, billed AS billable_operations, counted_bytes AS bytes,
       CASE WHEN cause = 'pairing' OR (counted_as = 'empty receive' AND cause = 'syphon') THEN 'idle'
            WHEN cause = 'failover' OR (cause = 'spool' AND side = 'secondary') THEN 'during'
            WHEN cause = 'syphon' THEN 'after' ELSE 'application' END AS part
FROM counted
"""

_BILL_LINES = """
SELECT coalesce(namespace, '') AS namespace, coalesce(side, '') AS side, coalesce(entity, '') AS entity, kind, part,
       timestamp_millis(unix_millis(time) div 3600000 * 3600000) AS hour,
       sum(billable_operations) AS operations, sum(bytes) AS bytes
FROM operations WHERE kind <> 'failed send'
GROUP BY 1, 2, 3, 4, 5, 6 HAVING sum(billable_operations) > 0 OR sum(bytes) > 0
"""

_MOVES = f"""
WITH steps AS (
  SELECT lower(entity) AS entity, message_id, lower(queue) AS queue, kind, {_TIME} AS time
  FROM {ROWS} WHERE kind IN ('diverted', 'moved') AND message_id <> ''
), messages AS (
  SELECT entity, message_id,
         min(CASE WHEN kind = 'diverted' THEN time END) AS diverted_at,
         min(CASE WHEN kind = 'moved' THEN time END) AS moved_at,
         min(CASE WHEN kind = 'moved' THEN struct(time, queue) END).queue AS queue,
         count_if(kind = 'moved') AS moves
  FROM steps GROUP BY entity, message_id
)
SELECT entity, message_id, queue, diverted_at, moved_at, moves,
       greatest(0, unix_millis(moved_at) - unix_millis(diverted_at)) / 1000 AS delay_s
FROM messages WHERE moved_at IS NOT NULL
"""

_OUTAGES = f"""
WITH runs AS (
  SELECT run, max({_TIME}) AS last_at FROM {ROWS} GROUP BY run
), placed AS (
  SELECT run, lower(coalesce(entity, '')) AS entity, event, {_TIME} AS time, source, position,
         {_FILE} AS number_of_file,
         get_json_object(details, '$.reason') AS reason,
         coalesce(get_json_object(details, '$.forced') = 'true', false) AS forced
  FROM {ROWS} WHERE event IN ('Suspected', 'FailedOver', 'Recovered', 'PairingCleared')
), changes AS (
  SELECT *, if(has_place, number_of_file, null) AS file, if(has_place, null, time) AS time_without_file
  FROM (SELECT *, count_if(number_of_file IS NULL) OVER (PARTITION BY run) = 0 AS has_place FROM placed)
), seen AS (
  SELECT DISTINCT run, entity FROM changes WHERE event IN {_STARTS}
), steps AS (
  SELECT run, entity, event, time, reason, forced, {_PLACE} FROM changes WHERE event <> 'PairingCleared'
  UNION ALL
  SELECT c.run, s.entity, event, time, reason, forced, {_PLACE}
  FROM changes c JOIN seen s ON c.run = s.run WHERE c.event = 'PairingCleared'
), numbered AS (
  SELECT *, count_if(event IN {_ENDS}) OVER
    (PARTITION BY run, entity ORDER BY {_PLACE} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    AS number
  FROM steps
), spans AS (
  SELECT run, entity, min_by(time, struct({_PLACE})) FILTER (WHERE event IN {_STARTS}) AS begins,
         min_by(time, struct({_PLACE})) FILTER (WHERE event = 'FailedOver') AS failed_over_at,
         max(CASE WHEN event IN {_ENDS} THEN time END) AS over_at,
         min_by(reason, struct({_PLACE})) FILTER (WHERE event IN {_STARTS}) AS reason,
         coalesce(bool_or(forced) FILTER (WHERE event = 'FailedOver'), false) AS forced
  FROM numbered GROUP BY run, entity, number HAVING min(CASE WHEN event IN {_STARTS} THEN time END) IS NOT NULL
), views AS (
  SELECT s.*, s.over_at IS NOT NULL AS is_over,
         if(s.failed_over_at IS NULL, null, greatest(s.begins, s.failed_over_at)) AS failed_over,
         greatest(s.begins, s.failed_over_at, coalesce(s.over_at, r.last_at)) AS ends
  FROM spans s JOIN runs r ON s.run = r.run
), marked AS (
  SELECT *, CASE WHEN begins <= max(ends) OVER
    (PARTITION BY entity ORDER BY begins, ends ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) THEN 0 ELSE 1 END
    AS is_new
  FROM views
), grouped AS (
  SELECT *, sum(is_new) OVER (PARTITION BY entity ORDER BY begins, ends ROWS UNBOUNDED PRECEDING) AS outage FROM marked
)
SELECT entity, min(begins) AS begins, min(failed_over) AS failed_over,
       CASE WHEN max_by(is_over, struct(ends, is_over)) THEN max(ends) END AS recovered,
       bool_or(forced) AS forced, min_by(reason, struct(begins, ends)) AS reason, count(DISTINCT run) AS clients,
       (unix_millis(min(failed_over)) - unix_millis(min(begins))) / 1000 AS time_to_divert_s
FROM grouped GROUP BY entity, outage
"""

VIEWS: Mapping[str, str] = {
    "operations": _OPERATIONS,
    "bill_lines": _BILL_LINES,
    "moves": _MOVES,
    "outages": _OUTAGES,
}
"Names of the views, in the order in which they are made, and their queries."


def register_views(spark: SparkSession, location: str | PathLike[str]) -> dict[str, DataFrame]:
    """Make the views of a compacted location in a session, as temporary views; return them by name.

    Times are timestamps, to be read in the session's time zone. ConfigError when the location was not compacted by
    `pairbus ledger compact`.
    """
    place = fspath(location)
    manifest = read_manifest(spark, place)
    if manifest is None:
        whereabouts = "on this machine" if is_local(spark, place) else "where the session is"
        raise ConfigError(f"There is no table of a ledger in {place} {whereabouts}: `pairbus ledger compact` makes one")
    table = read_table(spark, place, manifest.format)
    if table is None:
        raise ConfigError(f"The table in {place} has no rows yet")
    table.createOrReplaceTempView(ROWS)
    views = {}
    for name, query in VIEWS.items():
        views[name] = spark.sql(query)
        views[name].createOrReplaceTempView(name)
    return views
