"""How `pairbus demo` brings the backlog home: a syphon in this process, or `pairbus syphon` on Spark as a child."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast

from pairbus.errors import ConfigError, PairbusError
from pairbus.ledger import Ledger, MeterKind
from pairbus.pairing.backlog import queue_path

LEDGER_CLOSE_S = 2.0
SPARK_DEADLINE_S = 600.0
SPARK_STOP_S = 20.0

Drain = Callable[[str, str, str, int, Path], Awaitable[int]]
"Primary, its name, secondary, how many backlog queues, folder to work in; how many messages were moved."


def ledger_of(folder: Path) -> Path:
    return folder / "ledger"


def check_spark() -> None:
    """Before anything starts: an outage that ends in a missing package would be a bad story."""
    if find_spec("pyspark") is None:
        raise ConfigError("--engine spark needs pyspark: pip install 'pairbus[spark-local]', or take --engine local")
    from pairbus.spark.java import find_java

    find_java()


async def drain_here(primary: str, name: str, secondary: str, backlog_queues: int, folder: Path) -> int:
    from pairbus.sides import Side
    from pairbus.syphon import Syphon, SyphonSettings
    from pairbus.transport.carrier import Carrier

    home, away = Side.from_connection_string(primary), Side.from_connection_string(secondary)
    ledger = Ledger(ledger_of(folder), client="syphon")

    def meter(
        side: Literal["primary", "secondary"], entity: str, kind: str, count: int, size_bytes: int, outcome: str
    ) -> None:
        namespace = home.name if side == "primary" else away.name
        ledger.meter(side, namespace, entity, cast(MeterKind, kind), size_bytes, count, outcome, cause="syphon")

    async with AsyncExitStack() as ends:
        ends.callback(ledger.close, LEDGER_CLOSE_S)
        primary_carrier, secondary_carrier = (
            Carrier(side.endpoint, credential=side.credential, ssl=side.ssl, proxy=side.proxy) for side in (home, away)
        )
        for carrier in (primary_carrier, secondary_carrier):
            await ends.enter_async_context(carrier)
        queues = [queue_path(name, index) for index in range(backlog_queues)]
        syphon = Syphon(
            primary_carrier, secondary_carrier, queues, settings=SyphonSettings(), publish=ledger.record, meter=meter
        )
        return (await syphon.run_once()).moved


async def drain_on_spark(primary: str, name: str, secondary: str, backlog_queues: int, folder: Path) -> int:
    """A child, because a process keeps its Java until it ends, and this one wants to clean up before."""
    words = ["-m", "pairbus", "syphon", "--engine", "spark", "--once", "--primary-name", name]
    words += ["--journal", str(folder / "journal"), "--ledger", str(ledger_of(folder))]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PAIRBUS_PRIMARY": primary, "PAIRBUS_SECONDARY": secondary},
        start_new_session=True,  # Ctrl-C is for us; and Java goes with its group
    )
    try:
        async with asyncio.timeout(SPARK_DEADLINE_S):
            said, problems = await process.communicate()
    except TimeoutError:
        raise PairbusError(f"the syphon on Spark has not ended after {SPARK_DEADLINE_S:.0f} s") from None
    finally:
        await _end(process)
    moved = re.search(r"^moved (\d+) messages", said.decode(), re.MULTILINE)
    if moved is None:
        last = problems.decode(errors="replace").strip()[-1000:]
        raise PairbusError(f"the syphon on Spark ended with exit code {process.returncode}: {last}")
    return int(moved[1])


async def _end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, then SIGKILL to the whole group: a Java without its Python is of no use to anybody."""
    if process.returncode is None:
        process.terminate()
        with suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(SPARK_STOP_S):
                await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
