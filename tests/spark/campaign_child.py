"""The Spark of a campaign, in a process of its own that is killed: it reads a stream until then.

python -m tests.spark.campaign_child JSON      prints the process id of its Java, then runs
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pairbus.ledger.table import compact_ledgers
from pairbus.spark import local_session
from pairbus.spark.session import write_plain_checkpoints
from tests.spark.conftest import TEST_CONF
from tests.spark.processes import java_of
from tests.spark.stream_query import reader, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Work:
    """Work of one child."""

    folder: str
    "Folder of the stream, with its checkpoint and its output."
    entities: str
    connection: str
    options: dict[str, str]
    reads_half: bool
    ledgers: tuple[str, ...]
    "Folders that are compacted again and again, into one table."
    table: str

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def half_of(frame: DataFrame, batch: int, folder: Path) -> None:
    """Run the tasks of every other partition alone, and write the bodies; a repeated batch writes the same file."""
    rows = frame.select("body").rdd
    chosen = list(range(batch % 2, rows.getNumPartitions(), 2))
    bodies = rows.context.runJob(rows, lambda part: [bytes(row.body).decode() for row in part], chosen)
    draft = folder / f".batch-{batch}"
    draft.write_text(json.dumps(bodies))
    draft.rename(folder / f"batch-{batch:08d}.json")


def start_half(spark: SparkSession, work: Work) -> StreamingQuery:
    folder = Path(work.folder)
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    rows = reader(spark, folder, work.connection, **work.options).load(work.entities)
    query = rows.writeStream.foreachBatch(lambda frame, batch: half_of(frame, batch, out))
    query = query.option("checkpointLocation", str(folder / "checkpoint"))
    return query.trigger(processingTime="0 seconds").start()


def compact(spark: SparkSession, work: Work) -> None:
    """Compact the ledgers into one table, by turns each of them and all; the kills of Java hit this too."""
    choices = [[ledger] for ledger in work.ledgers] + [list(work.ledgers)]
    turn = 0
    while True:
        try:
            compact_ledgers(spark, choices[turn % len(choices)], work.table)
        except Exception as error:  # every failure is part of the experiment
            print(f"the compaction failed: {str(error)[:500]}", file=sys.stderr, flush=True)
        turn += 1
        time.sleep(0.5)


def main() -> None:
    work = Work(**json.loads(sys.argv[1]))
    spark = local_session("campaign", "local[2,4]", **TEST_CONF)
    spark.sparkContext.setLogLevel("ERROR")
    write_plain_checkpoints(spark)
    print(java_of(spark), flush=True)
    if work.ledgers:
        threading.Thread(target=compact, args=[spark, work], daemon=True).start()
    while True:
        try:
            if work.reads_half:
                query = start_half(spark, work)
            else:
                query = start(
                    spark, work.entities, Path(work.folder), once=False, connection=work.connection, **work.options
                )
            query.awaitTermination()
        except Exception as error:  # Spark raises many classes; every failure is part of the experiment
            print(f"the query failed: {str(error)[:3000]}", file=sys.stderr, flush=True)
            time.sleep(0.5)


if __name__ == "__main__":
    main()
