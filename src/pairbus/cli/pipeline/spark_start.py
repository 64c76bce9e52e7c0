"""The start of Spark for `pairbus syphon` and `pairbus redrive`: its session, the job in it, and the next process."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import typer

from pairbus.cli.pipeline.spark_place import MASTER, SparkPlace
from pairbus.cli.standard import STOPPING, say, signal_handlers
from pairbus.errors import ConfigError, PairbusError, SparkGone
from pairbus.spark import Quotas, compact, redrive, syphon
from pairbus.spark.features import spark_errors
from pairbus.spark.session import LIGHT_JAVA, set_log_level
from pairbus.spark.storage.locations import is_url
from pairbus.spark.syphon_job.supervisor import line_of
from pairbus.syphon import SyphonSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.cli.pipeline.spark_options import SparkOptions
    from pairbus.cli.pipeline.spark_server import ServerNamespaces
    from pairbus.spark.syphon_job.supervisor import SparkSyphon

APP = "pairbus syphon"
RESTARTS = "PAIRBUS_SYPHON_RESTARTS"
RESTARTS_MAX = 5  # restarts of Java, by a command that is to end by itself
RESTART_MAX_S = 60.0


def place_of(option_text: str | None, text: str, variable: str, spark: SparkPlace) -> str:
    """Return where Spark's workers find a connection string: in its file, or in the environment that they have."""
    if option_text is not None and option_text.startswith("@"):
        return f"@{Path(option_text[1:]).absolute()}"
    if option_text is not None and option_text.startswith("env:"):
        return option_text
    if not spark.is_local:
        raise ConfigError(
            f"{variable}: executors of {spark} do not see the environment of this command: give the connection string"
            " as @FILE, a file that is on every host, or as env:NAME, a variable that every executor has too"
        )
    os.environ[variable] = text
    return f"env:{variable}"


@dataclass(frozen=True, slots=True)
class SparkStart:
    """Settings for the start of Spark and of its job."""

    options: SparkOptions
    server: ServerNamespaces | None
    "Connect server, when Spark is there."
    settings: SyphonSettings
    journal: str
    "A folder, or a URL."
    primary: str
    secondary: str

    def syphon(self, queues: Mapping[str, int | None], *, once: bool, primary_name: str | None) -> SparkSyphon:
        """Start Spark and a drain; with `primary_name`, backlog queues that are created later are drained too."""
        return syphon(
            self._open(),
            primary=self.primary,
            secondary=self.secondary,
            queues=queues,
            primary_name=primary_name,
            once=once,
            ttl_policy=self.settings.ttl_policy,
            missing_destination_grace=self.settings.missing_destination_grace_s,
            **self._common(),
        )

    def redrive(
        self, queue: str, to: str | None, *, once: bool, duplicate_window_s: float | None, new_ids: bool
    ) -> SparkSyphon:
        """Start Spark, and a drain of dead letters."""
        return redrive(
            self._open(),
            queue,
            source=self.secondary,
            target=self.primary,
            to=to,
            once=once,
            duplicate_window=duplicate_window_s,
            new_ids=new_ids,
            **self._common(),
        )

    def compact(self, spark: SparkSession) -> None:
        """Make the tables of the journal and of the ledger. PairbusError or OSError when that fails."""
        tables, ledger = self.options.tables, self.options.ledger
        if tables is None and is_url(self.journal):
            say("the table of moves is not made: --tables says where it goes")
            return
        ledgers = [] if ledger is None else [ledger]
        credential = self.options.storage_credential
        try:
            compact(spark, self.journal, ledgers=ledgers, tables=tables, storage_credential=credential)
        except spark_errors() as error:
            raise PairbusError(line_of(error)) from error

    def _open(self) -> SparkSession:
        where = self.options.where
        if self.server is not None:
            say(f"using {where}")
            return self.server.spark
        say(f"starting Spark on {where}")
        spark = where.open(APP, _conf(where.master or MASTER))
        set_log_level(spark, "ERROR")
        return spark

    def _common(self) -> dict[str, Any]:
        """Return the options of both kinds of drain."""
        options = self.options
        return {
            "journal": self.journal,
            "max_messages_per_second": self.settings.max_messages_per_second,
            "credential": options.credential,
            "storage_credential": options.storage_credential,
            "checkpoint": options.checkpoint,
            "ledger": options.ledger,
            "ca_file": None if options.ca_file is None else str(options.ca_file),
            "quotas": Quotas(tasks=options.tasks),
        }


def _conf(master: str) -> dict[str, str]:
    """Return the configuration by which executors find the driver: this host's address towards the master."""
    where = urlsplit(master.removeprefix("k8s://"))
    if where.hostname is None:
        return {"spark.driver.extraJavaOptions": LIGHT_JAVA}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        unsent.connect((where.hostname, where.port or 443))
        address: str = unsent.getsockname()[0]
    return {"spark.driver.host": address, "spark.driver.bindAddress": address}


def has_restarted() -> bool:
    """Return whether this process was started by `again`."""
    return RESTARTS in os.environ


def again(gone: SparkGone, *, once: bool) -> NoReturn:
    """Start this command again: a process can have one Java, and its Java is gone.

    Ctrl-C and SIGTERM end the pause before, with the exit code of a command that is stopped.
    """
    count = int(os.environ.get(RESTARTS, "0")) + 1
    if once and count > RESTARTS_MAX:
        raise gone
    pause_s = min(2.0 ** (count - 1), RESTART_MAX_S)
    before = signal_handlers()

    def stop(*_: object) -> NoReturn:
        raise typer.Exit(int(once))

    try:
        for number in STOPPING:
            signal.signal(number, stop)
        say(f"{gone}; starting again in {pause_s:.0f} s")
        time.sleep(pause_s)
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: no handler of Python
                signal.signal(number, handler)
    os.environ[RESTARTS] = str(count)
    os.execv(sys.executable, [sys.executable, "-m", "pairbus", *sys.argv[1:]])
