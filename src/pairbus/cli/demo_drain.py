"""The drain of `pairbus demo`: the interface of its engines, and the syphon in this process."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self, cast

from pairbus.errors import ConfigError
from pairbus.ledger import Ledger, MeterKind
from pairbus.pairing.backlog import queue_path

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import SparkSession

LEDGER_CLOSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Way:
    """The two namespaces of a drain."""

    primary: str
    "Connection string of the primary."
    name: str
    "Name of the primary in the paths of backlog queues."
    secondary: str
    "Connection string of the secondary."
    backlog_queues: int


class Drain(Protocol):
    """Engine that moves the backlog home; entered when the story begins, left when the ledger has been read."""

    @property
    def spark(self) -> SparkSession | None:
        """Spark session, after `move`, that runs until the drain is left; the report uses it. None without Spark."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...

    async def move(self, way: Way) -> int:
        """Move the backlog home; returns how many messages were moved."""


def ledger_of(folder: Path) -> Path:
    return folder / "ledger"


def has_spark() -> bool:
    """True when Spark is installed: then the demo uses it."""
    return find_spec("pyspark") is not None


def check_spark() -> None:
    """Raise ConfigError when Spark or Java is missing; called before the demo starts anything."""
    if not has_spark():
        raise ConfigError("--engine spark needs pyspark: pip install 'pairbus[spark-local]', or take --engine local")
    from pairbus.spark.java import find_java

    find_java()


class LocalDrain(AsyncExitStack):
    """Drain by a syphon in this process."""

    spark = None

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    async def move(self, way: Way) -> int:
        from pairbus.client.sides import Side
        from pairbus.syphon import Syphon, SyphonSettings
        from pairbus.transport.carrier import Carrier

        home, away = Side.from_connection_string(way.primary), Side.from_connection_string(way.secondary)
        ledger = Ledger(ledger_of(self._folder), client="syphon")

        def meter(
            side: Literal["primary", "secondary"], entity: str, kind: str, count: int, size_bytes: int, outcome: str
        ) -> None:
            namespace = home.name if side == "primary" else away.name
            ledger.meter(side, namespace, entity, cast(MeterKind, kind), size_bytes, count, outcome, cause="syphon")

        async with AsyncExitStack() as ends:
            ends.callback(ledger.close, LEDGER_CLOSE_S)
            primary_carrier, secondary_carrier = (
                Carrier(side.endpoint, credential=side.credential, ssl=side.ssl, proxy=side.proxy)
                for side in (home, away)
            )
            for carrier in (primary_carrier, secondary_carrier):
                await ends.enter_async_context(carrier)
            queues = [queue_path(way.name, index) for index in range(way.backlog_queues)]
            syphon = Syphon(
                primary_carrier,
                secondary_carrier,
                queues,
                settings=SyphonSettings(),
                publish=ledger.record,
                meter=meter,
            )
            return (await syphon.run_once()).moved
