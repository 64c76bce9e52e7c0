"""A client of a Spark Connect server: source, sink, stream, syphon and tables, with nothing of its own but an address.

python -m tests.spark.connect_client FOLDER QUEUE      SPARK_REMOTE has the address, FOLDER is the server's
prints what it found as JSON
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

HOME, AWAY, BROKER = "ONLY_THERE_HOME", "ONLY_THERE_AWAY", "ONLY_THERE_BROKER"
"Environment variables of the server."


def main() -> None:
    folder, queue = Path(sys.argv[1]), sys.argv[2]
    touched = _watch(str(folder))
    from pairbus.spark import compact, drain, open_session, register, syphon

    spark = open_session("client")
    register(spark)
    found: dict[str, Any] = {}
    orders = spark.read.format("servicebus").option("connectionString", f"env:{BROKER}").load(queue)
    found["read"] = orders.count()
    copies = orders.selectExpr("body", "concat('copy-', message_id) message_id")
    sink = copies.write.format("servicebus").option("connectionString", f"env:{BROKER}").mode("append")
    sink.save(queue)
    stream = spark.readStream.format("servicebus").option("connectionString", f"env:{BROKER}")
    rows = stream.option("stagingLocation", str(folder / "staging")).load(queue)
    out = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    drain(out.option("path", str(folder / "out")))
    found["streamed"] = spark.read.parquet(str(folder / "out")).count()
    moving = syphon(
        spark,
        primary=f"env:{HOME}",
        secondary=f"env:{AWAY}",
        primary_name="contoso",
        journal=folder / "location",
        backlog_queue_count=2,
        once=True,
    )
    assert moving.wait(300.0)
    found |= {"moved": moving.progress().moved, "left": moving.left, "restarts": moving.restarts}
    found["moves"] = compact(spark, folder / "location").moves
    found["files touched"] = touched
    found["py4j"] = "py4j" in sys.modules
    found["secrets here"] = sorted({HOME, AWAY, BROKER} & os.environ.keys())
    spark.stop()
    print(json.dumps(found))


def _watch(folder: str) -> list[str]:
    """Return a list that gets the paths below the folder that this process opens, makes or looks into."""
    touched: list[str] = []

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove") and arguments:
            if isinstance(arguments[0], (str, os.PathLike)) and os.fspath(arguments[0]).startswith(folder):
                touched.append(f"{event} {arguments[0]}")

    sys.addaudithook(heard)
    return touched


if __name__ == "__main__":
    main()
