"""gevent's monkey patching: refused with a way out, and the way out works."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import pytest

from tests.client.world import Stage

pytestmark = pytest.mark.slow

COUNT = "10"
"As the program prints it, which cannot be imported: it patches whoever imports it."
WAY_OUT = re.compile(r"monkey\.patch_all\((.*)\)")


async def run(stage: Stage, *left_alone: str) -> str:
    """Run a patched program; what it printed."""
    ends = stage.primary.connection_string, stage.secondary.connection_string
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.client.greenlets", *ends, *left_alone),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        said, errors = await asyncio.wait_for(process.communicate(), 40)
    finally:
        if process.returncode is None:
            process.kill()
    assert (process.returncode, errors.decode()) == (0, "")
    return said.decode().strip()


@pytest.mark.parametrize("left_alone", [(), ("thread",), ("thread", "socket", "select", "subprocess")])
async def test_patched_modules_are_refused_with_the_way_out(stage: Stage, left_alone: tuple[str, ...]) -> None:
    """The engine's event loop in a thread cannot live with any of them; nothing is sent, nothing hangs."""
    said = await run(stage, *left_alone)
    assert "gevent has patched" in said and WAY_OUT.search(said)
    assert stage.primary.received == []


async def test_advice_in_the_refusal_works(stage: Stage) -> None:
    """The refusal text tells people what to do; this test does exactly that."""
    named = WAY_OUT.search(await run(stage))
    assert named is not None
    left_alone = [argument.partition("=")[0] for argument in named[1].split(", ")]
    assert await run(stage, *left_alone) == COUNT
    assert len(stage.primary.stored("orders")) == int(COUNT)
