"""Place of a command's Spark: a master, or a Spark Connect server; and the options for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

MASTER = "local[*]"

Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help=f"Where Spark runs, {MASTER} by default; only with --engine spark."),
]
Remote = Annotated[
    str | None,
    typer.Option(
        envvar="SPARK_REMOTE",
        metavar="sc://HOST:PORT",
        help="Spark Connect server to use instead; files and secrets are then those of the server.",
    ),
]


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """A master, or the address of a Spark Connect server."""

    master: str | None
    remote: str | None

    def __str__(self) -> str:
        return f"the Spark Connect server at {self.remote.partition(';')[0]}" if self.remote else self.master or MASTER

    @property
    def is_local(self) -> bool:
        """True when all of Spark is on this machine, and inherits the environment of this process."""
        return self.remote is None and (self.master or MASTER).startswith("local")

    def open(self, app_name: str, conf: Mapping[str, str] | None = None) -> SparkSession:
        from pairbus.spark.session import local_session, remote_session

        if self.remote is not None:
            return remote_session(app_name, self.remote, **(conf or {}))
        return local_session(app_name, self.master or MASTER, **(conf or {}))


def spark_place(master: str | None, remote: str | None) -> SparkPlace:
    """Check the two options. ConfigError when both are given: a server has its own master."""
    if master is not None and remote:
        raise ConfigError(
            f"--master {master} and --remote {remote.partition(';')[0]} (which SPARK_REMOTE sets too): a Spark Connect"
            " server has its own master, so give one of the two"
        )
    return SparkPlace(master, remote or None)
