"""A process that does not close its client ends as if there were none: soon, with its own exit code, without a word."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.client.messages import id_of
from tests.client.world import Stage
from tests.limits import slowness
from tests.scripted import Reject

pytestmark = pytest.mark.slow

ENDS_S = 1.0


async def end(stage: Stage, how: str, folder: Path) -> float:
    """Run a program until it has ended; how long that took after the end of its main."""
    ends = stage.primary.connection_string, stage.secondary.connection_string
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.client.ending", how, *ends, str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said, errors = await asyncio.wait_for(process.communicate(), 40)
    ended = time.time()
    assert (process.returncode, errors.decode()) == (7, "")
    return ended - float(said)


@pytest.mark.parametrize("how", ["healthy", "failed over", "syphon", "listener", "spool", "spooled"])
async def test_a_process_ends_soon_though_its_client_is_open(stage: Stage, tmp_path: Path, how: str) -> None:
    if how in ("failed over", "spooled"):
        stage.primary.on("transfer", Reject())
    if how == "spooled":
        stage.secondary.on("transfer", Reject())
    took_s = await end(stage, how, tmp_path)
    print(f"{how}: {took_s:.2f} s")
    assert took_s < ENDS_S * slowness()
    assert len(stage.primary.stored("orders")) == (how not in ("failed over", "spooled"))
    assert len(stage.in_backlog()) == (how == "failed over")


WITHOUT_THREADS = pytest.mark.skipif(
    (3, 12, 0) <= sys.version_info[:3] <= (3, 12, 2), reason="this Python starts no thread while it ends"
)


@pytest.mark.parametrize(
    "how",
    [
        "atexit",
        pytest.param("atexit first", marks=WITHOUT_THREADS),
        pytest.param("atexit early", marks=WITHOUT_THREADS),
        "atexit diverted",
        "atexit spooling",
    ],
)
async def test_a_function_of_atexit_may_send(stage: Stage, tmp_path: Path, how: str) -> None:
    """The send may be the first call of a client, after Pairbus has ended its threads, and while not healthy."""
    if how in ("atexit diverted", "atexit spooling"):
        stage.primary.on("transfer", Reject(), when=lambda occasion: b"last" in occasion.payload)
    if how == "atexit spooling":
        stage.secondary.on("transfer", Reject())
    await end(stage, how, tmp_path)
    stored = [id_of(payload) for payload in [*stage.primary.stored("orders"), *stage.in_backlog()]]
    assert stored == {"atexit first": ["last"], "atexit spooling": ["first"]}.get(how, ["first", "last"])
