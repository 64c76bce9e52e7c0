"""The Spark engine of `pairbus demo`: started while applications are sending, stopped before the demo cleans up.

Spark starts slowly and in steps: Java, a session, and for the first stream half a dozen Python processes. All of this
happens in the background; a small stream goes through the same steps, so that all is warm when the outage is over.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.cli.demo_pair import BACKLOG_QUEUES, PRIMARY
from pairbus.errors import PairbusError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_S = 600.0
LOOK_S = 0.2
LAUNCH_S = 60.0
MASTER = "local[2]"
CONF = {"spark.driver.memory": "512m"}


class SparkDrain:
    """Drain by Spark: `async with` starts Spark in the background, `move` waits for it."""

    def __init__(self, folder: Path, ledger: Path, say: Callable[[str, str], None]) -> None:
        self.spark: SparkSession | None = None
        "Spark session, after `move`, that runs until the end of the `async with`; the report uses it."
        self._folder = folder
        self._ledger = ledger
        self._say = say
        self._java: subprocess.Popen[bytes] | None = None
        self._launched = threading.Event()
        self._starting: asyncio.Task[SparkSession] | None = None

    async def __aenter__(self) -> SparkDrain:
        self._starting = asyncio.create_task(asyncio.to_thread(self._start))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._starting is not None
        await asyncio.to_thread(self._stop)
        await asyncio.wait([self._starting])
        self._starting.exception()  # marks an error of the start as seen

    async def move(self, home: str, away: str) -> int:
        """Move the backlog home; returns how many messages were moved."""
        from pairbus.spark import Quotas, syphon

        assert self._starting is not None
        if not self._starting.done():
            self._say("moving", "pairbus.spark.syphon; waiting for Spark, which was started with the applications")
        self.spark = await self._starting
        drain = await asyncio.to_thread(
            syphon,
            self.spark,
            primary=self._secret("primary", home),
            secondary=self._secret("secondary", away),
            journal=self._folder / "journal",
            primary_name=PRIMARY,
            backlog_queue_count=BACKLOG_QUEUES,
            once=True,
            ledger=self._ledger,
            quotas=Quotas(tasks=1),  # for a few hundred messages a second worker costs more time than it saves
        )
        async with asyncio.timeout(DEADLINE_S):
            while not await asyncio.to_thread(drain.wait, LOOK_S):
                pass
        return drain.progress().moved

    def _secret(self, side: str, text: str) -> str:
        """Write a connection string to a file: Java was started before the ports were known. Returns `@file`."""
        place = self._folder / side
        place.touch(0o600)
        place.write_text(text)
        return f"@{place}"

    # ── in threads ──

    def _start(self) -> SparkSession:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        from pairbus.spark.session import local_session, write_plain_checkpoints

        try:
            self._launch()
            session = local_session("pairbus demo", MASTER, **CONF, **self._places())
            session.sparkContext.setLogLevel("OFF")
            write_plain_checkpoints(session)
            _warm(session, self._folder / "warm")
        except (PySparkException, Py4JError, ConnectionError) as error:
            last = self._stderr.read_text(errors="replace").strip()[-1000:]
            raise PairbusError(f"Spark did not start: {error}: {last}") from error
        finally:
            self._launched.set()
        return session

    @property
    def _stderr(self) -> Path:
        return self._folder / "spark.stderr"

    def _places(self) -> dict[str, str]:
        """Settings that keep all files of Spark in the demo's folder, which is deleted at the end."""
        from pairbus.spark.session import LIGHT_JAVA

        place = self._folder / "spark"
        place.mkdir(exist_ok=True)
        return {
            "spark.local.dir": str(place),
            "spark.driver.extraJavaOptions": f"{LIGHT_JAVA} -XX:-UsePerfData -Djava.io.tmpdir={place}",
        }

    def _launch(self) -> None:
        """Start Java before the session, so that the demo can kill it at any time; its standard error is in a file."""
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        from pairbus.spark.java import prepare_environment

        prepare_environment()
        conf = SparkConf(loadDefaults=False).setAll([*CONF.items(), *self._places().items()])
        with self._stderr.open("wb") as errors:
            gateway: Any = launch_gateway(conf, {"stderr": errors})  # type: ignore[no-untyped-call]
        self._java = gateway.proc
        self._launched.set()
        SparkContext._ensure_initialized(gateway=gateway)

    def _stop(self) -> None:
        """Kill Java with SIGKILL: an orderly end of Spark takes ten seconds on a busy machine."""
        self._launched.wait(LAUNCH_S)
        if self._java is None:
            return
        from pyspark import SparkContext

        told = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
        if told is not None:
            told.shutdown()  # it would print a traceback when Java is killed
        if SparkContext._gateway is not None:
            SparkContext._gateway.shutdown()  # otherwise data frames that are collected later would log errors
        self._java.kill()
        self._java.wait()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


def _warm(session: SparkSession, folder: Path) -> None:
    """Send one row through a stream with a Python source. Its classes are local, so that they are pickled by value."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class OneRow(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"row": 0}

        def latestOffset(self, *_: Any) -> dict[str, int]:
            return {"row": 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Any:
            import pairbus.spark.syphon_source  # noqa: F401  # the worker is used again, and has imported it then

            yield (1,)

    class Warmth(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pairbus-demo-warmth"

        def schema(self) -> str:
            return "row bigint"

        def streamReader(self, schema: Any) -> OneRow:
            return OneRow()

    session.dataSource.register(Warmth)
    stream = session.readStream.format(Warmth.name()).load().writeStream.format("noop")
    stream.option("checkpointLocation", str(folder)).trigger(once=True).start().awaitTermination()
