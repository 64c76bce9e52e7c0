"""Pytest plugin that fails every test without the marker `spark` that starts a Java: so `make quick` starts none.

In such a test, and in the processes that it starts, JAVA_HOME leads to a trap. The trap tells a version, for which
`find_java` asks, and writes down every other start, which fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

_TRAP = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "17.0.0"' >&2; exit 0; fi
echo "$@" >> '{starts}'
echo 'this test has no Java: it lacks the marker spark' >&2
exit 1
"""


@pytest.fixture(scope="session")
def java_trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A value for JAVA_HOME; the trap writes into its file `starts`."""
    home = tmp_path_factory.mktemp("no-java")
    script = home / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_TRAP.format(starts=home / "starts"), encoding="utf-8")
    script.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def java_only_where_marked(request: pytest.FixtureRequest, java_trap: Path) -> Iterator[None]:
    if request.node.get_closest_marker("spark") is not None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java_trap))
        yield
    starts = java_trap / "starts"
    if starts.exists():
        first = starts.read_text(encoding="utf-8").splitlines()[0]
        starts.unlink()
        pytest.fail(f"the test started a Java (java {first[:200]}): give it the marker `spark`")
