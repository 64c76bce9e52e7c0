"""The Spark engine of `pairbus syphon` and `pairbus redrive`: a session of its own, the job in it, its tables."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast
from urllib.parse import urlsplit

from pairbus.cli.spark_place import MASTER, SparkPlace
from pairbus.cli.standard import say
from pairbus.errors import ConfigError, SparkGone
from pairbus.spark.rounds import Quotas
from pairbus.spark.session import LIGHT_JAVA, set_log_level
from pairbus.spark.syphon_job import redrive, syphon
from pairbus.storage.locations import is_url
from pairbus.syphon import Progress, SyphonSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.cli.secrets import Namespaces
    from pairbus.cli.spark_server import ServerNamespaces
    from pairbus.spark.supervisor import SparkSyphon

APP = "pairbus syphon"
LOOK_S = 0.5
COMPACT_S = 3600.0
RESTARTS = "PAIRBUS_SYPHON_RESTARTS"
RESTARTS_MAX = 5  # of Java, by a command that is to end by itself
RESTART_MAX_S = 60.0

T = TypeVar("T")


def place_of(given: str | None, text: str, variable: str, spark: SparkPlace) -> str:
    """Where Spark's workers find a connection string: in its file, or in the environment that they inherit or have."""
    if given is not None and given.startswith("@"):
        return f"@{Path(given[1:]).absolute()}"
    if given is not None and given.startswith("env:"):
        return given
    if not spark.is_local:
        raise ConfigError(
            f"{variable}: executors of {spark} do not see the environment of this command: give the connection string"
            " as @FILE, a file that is on every host, or as env:NAME, a variable that every executor has too"
        )
    os.environ[variable] = text
    return f"env:{variable}"


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are."""

    spark: SparkPlace
    journal: str
    "A folder, or a URL."
    checkpoint: Path | None
    ledger: Path | None
    ca_file: Path | None
    primary: str
    secondary: str
    credential: str | None = None
    "Name of a credential, when primary and secondary are hosts."
    storage_credential: str | None = None
    "Credential that opens a journal in an object store."
    tables: str | None = None
    "Where the table of moves goes; None: into the journal's folder."
    tasks: int | None = None
    "That run at once; None: as many as Spark says."


class SparkPump:
    """The same face as a `Syphon` has. Spark is started by `run` or `run_once`."""

    def __init__(self, places: Places, settings: SyphonSettings, namespaces: Namespaces) -> None:
        self.server = None if places.spark.remote is None else cast("ServerNamespaces", namespaces)
        "The Connect server, when that is where Spark is."
        self._places = places
        self._settings = settings
        self._make: Callable[[SparkSession], SparkSyphon] | None = None
        self._told: Callable[[str], None] = print
        self._heard: Counter[str] = Counter()
        self._queues = 1
        self._spark: SparkSession | None = None
        self._job: SparkSyphon | None = None
        self._stopping = asyncio.Event()

    def syphon(
        self,
        queues: Mapping[str, int | None],
        told: Callable[[str], None],
        *,
        once: bool,
        primary_name: str | None,
    ) -> SparkPump:
        """Prepare a drain; with `primary_name`, also of its backlog queues that are created later."""
        places, settings = self._places, self._settings
        self._told, self._queues = told, len(queues)
        self._make = lambda spark: syphon(
            spark,
            primary=places.primary,
            secondary=places.secondary,
            journal=places.journal,
            queues=queues,
            primary_name=primary_name,
            once=once,
            max_messages_per_second=settings.max_messages_per_second,
            ttl_policy=settings.ttl_policy,
            missing_destination_grace=settings.missing_destination_grace_s,
            credential=places.credential,
            storage_credential=places.storage_credential,
            checkpoint=places.checkpoint,
            ledger=places.ledger,
            ca_file=None if places.ca_file is None else str(places.ca_file),
            quotas=Quotas(tasks=places.tasks),
        )
        return self

    def redrive(
        self,
        queue: str,
        to: str | None,
        told: Callable[[str], None],
        *,
        once: bool,
        duplicate_window_s: float | None,
        new_ids: bool,
    ) -> SparkPump:
        places = self._places
        self._told = told
        self._make = lambda spark: redrive(
            spark,
            queue,
            source=places.secondary,
            target=places.primary,
            journal=places.journal,
            to=to,
            once=once,
            duplicate_window=duplicate_window_s,
            new_ids=new_ids,
            max_messages_per_second=self._settings.max_messages_per_second,
            credential=places.credential,
            storage_credential=places.storage_credential,
            checkpoint=places.checkpoint,
            ledger=places.ledger,
            ca_file=None if places.ca_file is None else str(places.ca_file),
            quotas=Quotas(tasks=places.tasks),
        )
        return self

    async def run(self) -> None:
        await self._work()

    async def run_once(self) -> None:
        await self._work()

    async def stop(self, grace_s: float) -> None:
        self._stopping.set()
        if self._job is not None:
            await asyncio.to_thread(self._job.stop, grace_s)

    def adopt(self, queues: Iterable[str]) -> None:
        """Drain these queues, too."""
        if self._job is not None:
            self._job.adopt(dict.fromkeys(queues))

    def progress(self) -> Progress:
        if self._job is None:
            return Progress(queues=self._queues, moved=0, per_s=0.0, blocked=0, dead_lettered=0, errors=0)
        now = self._job.progress()
        return now if self._job.left is None else replace(now, blocked=self._job.left)

    async def _work(self) -> None:
        say(f"starting Spark on {self._places.spark}" if self.server is None else f"using {self._places.spark}")
        self._job = await self._unless_stopping(self._begin)
        compact_at = time.monotonic() + COMPACT_S
        while self._job is not None and not await asyncio.to_thread(self._job.wait, LOOK_S):
            self._tell()
            if time.monotonic() >= compact_at:
                await self._unless_stopping(self._compact)
                compact_at = time.monotonic() + COMPACT_S
        self._tell()
        if not self._stopping.is_set():
            await self._unless_stopping(self._compact)

    def _begin(self) -> SparkSyphon:
        assert self._make is not None
        if self.server is not None:
            self._spark = self.server.spark
        else:
            self._spark = self._places.spark.open(APP, _conf(self._places.spark.master or MASTER))
            set_log_level(self._spark, "ERROR")
        return self._make(self._spark)

    def _compact(self) -> None:
        from pairbus.spark.compaction import compact

        assert self._spark is not None
        places = self._places
        if places.tables is None and is_url(places.journal):
            say("the table of moves is not made: --tables says where it goes")
            return
        ledgers = [] if places.ledger is None else [places.ledger]
        compact(
            self._spark,
            places.journal,
            ledgers=ledgers,
            tables=places.tables,
            storage_credential=places.storage_credential,
        )

    def _tell(self) -> None:
        if self._job is not None:
            for problem, count in self._job.problems.items():
                if count > self._heard[problem]:
                    self._heard[problem] = count
                    self._told(problem)

    async def _unless_stopping(self, work: Callable[[], T]) -> T | None:
        """In a thread that does not keep the process alive: a Java that starts slowly must not delay its end."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                _from_thread(loop, done.set_exception, error)
                if not isinstance(error, Exception):
                    raise
            else:
                _from_thread(loop, done.set_result, result)

        threading.Thread(target=run, daemon=True).start()
        stop = asyncio.create_task(self._stopping.wait())
        waits: list[asyncio.Future[Any]] = [done, stop]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        return done.result() if done.done() else None


def _conf(master: str) -> dict[str, str]:
    """Executors of a cluster must find the driver: by the address of this host that leads to the master."""
    where = urlsplit(master.removeprefix("k8s://"))
    if where.hostname is None:
        return {"spark.driver.extraJavaOptions": LIGHT_JAVA}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        unsent.connect((where.hostname, where.port or 443))
        address: str = unsent.getsockname()[0]
    return {"spark.driver.host": address, "spark.driver.bindAddress": address}


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[..., Any], *arguments: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *arguments)


def has_restarted() -> bool:
    """Whether this process was started by `again`."""
    return RESTARTS in os.environ


def again(gone: SparkGone, *, once: bool) -> NoReturn:
    """Start this command anew: a process can have one Java, and its Java is gone."""
    count = int(os.environ.get(RESTARTS, "0")) + 1
    if once and count > RESTARTS_MAX:
        raise gone
    pause_s = min(2.0 ** (count - 1), RESTART_MAX_S)
    say(f"{gone}; starting again in {pause_s:.0f} s")
    time.sleep(pause_s)
    os.environ[RESTARTS] = str(count)
    os.execv(sys.executable, [sys.executable, "-m", "pairbus", *sys.argv[1:]])
