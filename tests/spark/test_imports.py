"""Imports of the format: Spark starts a Python process for each step of a query, and every one of them imports it."""

from __future__ import annotations

import subprocess
import sys

SLOW = {
    "aiohttp",
    "azure",
    "pairbus.ledger",
    "pairbus.syphon",
    "pairbus.spark.source.stream_reader",
    "pairbus.spark.syphon_job.arguments",
}
"Modules that take together longer to import than the format itself."


def test_the_format_imports_only_what_a_batch_needs() -> None:
    """Five processes import the format when a DataFrame is saved, and two seconds are a sixth of a short job."""
    code = "import sys, pairbus.spark.source.formats; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert SLOW.isdisjoint(done.stdout.split())
