"""The pause before a command on Spark starts again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pairbus.cli.pipeline.spark_start import RESTARTS

AGAIN = """
import sys
import typer
from pairbus.cli.pipeline.spark_start import again
from pairbus.errors import SparkGone

is_once = sys.argv.pop() == "once"

def command() -> None:
    again(SparkGone("Java is gone"), once=is_once)

typer.run(command)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("once", "code"), [("once", 1), ("on", 0)])
def test_signal_in_the_pause_before_a_restart_is_a_clean_end(number: signal.Signals, once: str, code: int) -> None:
    """A supervisor may stop a syphon while it waits for its next process, which can take a minute. Only a drain that
    is to end by itself has failed then."""
    with subprocess.Popen(
        [sys.executable, "-c", AGAIN, once],
        env={**os.environ, RESTARTS: "4"},
        stderr=subprocess.PIPE,
        text=True,
        # A background job of a shell inherits that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - this process has no threads
    ) as process:
        assert process.stderr is not None
        try:
            assert process.stderr.readline() == "Java is gone; starting again in 16 s\n"
            process.send_signal(number)
            assert process.wait(10) == code
            assert process.stderr.read() == ""
        finally:
            process.kill()
