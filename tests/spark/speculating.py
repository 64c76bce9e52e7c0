"""A Spark that may run a slow task twice at once: it writes to a queue, as a batch and as a stream, and reads one.

python -m tests.spark.speculating CONNECTION FROM TO FOLDER      prints how the two writes ended, as JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import PySparkException

from pairbus.spark import local_session
from tests.spark.stream_query import start


def main() -> None:
    connection, queue, target, folder = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
    spark = local_session("speculating", "local[2]", **{"spark.speculation": "true"})
    failures = []
    rows = spark.range(3).selectExpr("cast(id AS string) AS body")
    try:
        rows.write.format("servicebus").option("connectionString", connection).mode("append").save(target)
    except PySparkException as error:
        failures.append(str(error))
    rates = spark.readStream.format("rate").load().selectExpr("cast(value AS string) AS body")
    stream = rates.writeStream.format("servicebus").option("connectionString", connection).option("entity", target)
    query = stream.option("checkpointLocation", str(folder / "sink")).start()
    try:
        query.awaitTermination()
    except PySparkException as error:
        failures.append(str(error))
    start(spark, queue, folder, once=True, connection=connection).awaitTermination()
    print(json.dumps(failures))
    spark.stop()


if __name__ == "__main__":
    main()
