"""Pytest plugin that fails every test without the marker `spark` that starts a Java: so `make quick` starts none.

In such a test, its fixtures, and the processes that they start, JAVA_HOME and PATH lead to a trap. The trap tells a
version, for which `find_java` asks, and writes down every other start, which fails.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_TRAP = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "17.0.0"' >&2; exit 0; fi
echo "$@" >> '{starts}'
echo 'this test has no Java: it lacks the marker spark' >&2
exit 1
"""


TRAP = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TRAP] = home = Path(tempfile.mkdtemp(prefix="pairbus-no-java-"))
    script = home / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_TRAP.format(starts=home / "starts"), encoding="utf-8")
    script.chmod(0o755)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[TRAP], ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Set the trap before the first fixture of the test, also one of its module or of the whole run."""
    if item.get_closest_marker("spark") is not None:
        return (yield)
    home = item.config.stash[TRAP]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(home))
        patch.setenv("PATH", str(home / "bin"), prepend=os.pathsep)  # for tests that unset JAVA_HOME
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail the test when it, or one of its fixtures, has started a Java."""
    result = yield
    starts = item.config.stash[TRAP] / "starts"
    if starts.exists():
        first = starts.read_text(encoding="utf-8").splitlines()[0]
        starts.unlink()
        pytest.fail(f"the test started a Java (java {first[:200]}): give it the marker `spark`")
    return result
