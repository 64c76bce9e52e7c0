"""`make azure` without Azure: its tests run here on two broker processes, and it says what it needs."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.azure import NAMES
from tests.brokers import BrokerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


async def run_suite(**environment: str) -> tuple[int | None, str]:
    """Run what `make azure` runs; its exit code, and what it printed."""
    target = re.search(r"^azure:.*\n\t\$\(BIN\)/pytest (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert target is not None
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *target[1].split()),
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in NAMES} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), 300)
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, printed.decode()


async def test_the_azure_suite_passes_on_two_brokers(tmp_path: Path) -> None:
    """The suite is known to work when somebody has two namespaces; it leaves nothing behind."""
    with (
        BrokerProcess(tmp_path / "one", namespaces=["one"]) as one,
        BrokerProcess(tmp_path / "two", namespaces=["two"]) as two,
    ):
        ends = one.connection_string("one"), two.connection_string("two")
        code, printed = await run_suite(**dict(zip(NAMES, ends, strict=True)))
        assert code == 0, printed
        assert " skipped" not in printed and "no tests ran" not in printed
        for broker, name in ((one, "one"), (two, "two")):
            with broker.admin(name) as admin:
                assert [*admin.list_queues()] == [] and [*admin.list_topics()] == []


async def test_the_azure_suite_says_what_it_needs() -> None:
    """Without namespaces nothing is run, and nobody takes that for a success."""
    code, printed = await run_suite()
    assert code not in (0, None)
    assert all(name in printed for name in NAMES)
