"""An application for `spark-submit`, as docs/spark-clusters.md shows it: drains backlog queues in the given session.

spark-submit … submitted.py JOURNAL PRIMARY SECONDARY QUEUES
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from pairbus.spark import syphon


def main() -> None:
    journal, primary, secondary, queues = sys.argv[1:]
    spark = SparkSession.builder.appName("drain").getOrCreate()
    drain = syphon(
        spark,
        primary=primary,
        secondary=secondary,
        journal=journal,
        primary_name="contoso",
        backlog_queue_count=int(queues),
        once=True,
    )
    drain.wait()
    print(f"moved={drain.progress().moved} left={drain.left}")
    spark.stop()


if __name__ == "__main__":
    main()
