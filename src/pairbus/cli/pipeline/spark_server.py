"""A Spark Connect server as `pairbus syphon` and `pairbus redrive` use it: all requests that need a secret are made
there.

The command itself connects to no namespace. Functions of this file without a class run where the server's driver is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pairbus.cli.namespace_options import Namespaces
from pairbus.cli.pipeline.backlogs import Backlogs, ask_duplicate_window
from pairbus.client.sides import Side
from pairbus.errors import ConfigError
from pairbus.spark.connections import Secret
from pairbus.spark.driver_side import DriverSide
from pairbus.spark.syphon_job.arguments import authority_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]
T = TypeVar("T")


def server_secret(text: str | None, option: str, variable: str, credential: str | None) -> Secret:
    """Read an option as the place of a secret on the server. ConfigError for a secret itself: it must not be sent."""
    if not text:
        raise ConfigError(f"{option} is missing: give it, or set {variable}")
    if credential is None and not text.startswith(("env:", "@")):
        raise ConfigError(
            f"{option} (or {variable}): a Spark Connect server does not see the environment of this command: give"
            " env:NAME, a variable of the server, or @FILE, a file of the server"
        )
    if text.startswith("@") and not Path(text[1:]).is_absolute():
        raise ConfigError(
            f"{option}: {text} must be an absolute path, because it is a file of the Spark Connect server"
        )
    return Secret.parse(text, option, credential)


class ServerNamespaces(Namespaces):
    """The namespaces of one command, as its Spark Connect server knows them."""

    def __init__(self, spark: SparkSession, credential: str | None, ca_file: Path | None) -> None:
        super().__init__(credential, ca_file)
        self.spark = spark
        self._driver = DriverSide(spark)
        self._ca_file = None if ca_file is None else str(ca_file)
        self._secrets: dict[Side, Secret] = {}

    def side(self, text: str | None, option: str, variable: str) -> Side:
        """Return a namespace by its name, which the server knows. It cannot be opened here."""
        secret = server_secret(text, option, variable, self._credential)
        side = Side.from_credential(self._driver.call(authority_of, secret), _Nowhere())
        self._used = self._used or secret.credential is not None
        self._secrets[side] = secret
        return side

    def backlogs(self, secondary: Side, say: Say) -> Backlogs:
        """Return the finder of the queues of a secondary."""
        return _ServerBacklogs(self, secondary, say)

    async def find(self, secondary: Side, primary_name: str, say: Say, *, once: bool) -> dict[str, int | None]:
        """Return the backlog queues of a primary, with the time of their creation."""
        return await self._ask(say, find_queues, secondary, primary_name, once)

    async def duplicate_window(self, primary: Side, path: str, say: Say, *, new_ids: bool) -> float | None:
        """Return for how long a destination remembers message ids; None when it does not say."""
        return await self._ask(say, find_duplicate_window, primary, path, new_ids)

    async def _ask(self, say: Say, question: Callable[..., tuple[T, list[str]]], side: Side, *arguments: Any) -> T:
        secret = self._secrets[side]
        answer, reply = await asyncio.to_thread(self._driver.call, question, secret, self._ca_file, *arguments)
        for line in reply:
            say(line)
        return answer


class _ServerBacklogs(Backlogs):
    def __init__(self, server: ServerNamespaces, secondary: Side, say: Say) -> None:
        super().__init__(secondary, say, _unmetered)
        self._server = server

    async def find(self, primary_name: str, *, once: bool) -> tuple[dict[str, int | None], list[Any] | None]:
        return await self._server.find(self._secondary, primary_name, self._say, once=once), None


class _Nowhere:
    """The credential of a namespace that only the server can open."""

    def get_token(self, *_: str, **__: object) -> NoReturn:
        raise ConfigError("this namespace is opened by the Spark Connect server only")


def find_queues(
    secret: Secret, ca_file: str | None, primary_name: str, once: bool
) -> tuple[dict[str, int | None], list[str]]:
    """Find the backlog queues; return them, and lines for the operator."""
    notes: list[str] = []
    backlogs = Backlogs(_side(secret, ca_file), notes.append, _unmetered)
    queues, _ = asyncio.run(backlogs.find(primary_name, once=once))
    return queues, notes


def find_duplicate_window(
    secret: Secret, ca_file: str | None, path: str, new_ids: bool
) -> tuple[float | None, list[str]]:
    """Ask a destination for its window; return it, and lines for the operator."""
    notes: list[str] = []
    window_s = asyncio.run(
        ask_duplicate_window(_side(secret, ca_file), path, notes.append, _unmetered, new_ids=new_ids)
    )
    return window_s, notes


def _side(secret: Secret, ca_file: str | None) -> Side:
    trust: dict[str, Any] = {} if ca_file is None else {"connection_verify": ca_file}
    if secret.credential is None:
        return Side.from_connection_string(secret.read(), **trust)
    return Side.from_credential(secret.source, secret.token_credential(), **trust)


def _unmetered(entity: str, count: int, outcome: str) -> None:
    """Count nothing: the ledger of a command on Spark is written by its tasks."""
