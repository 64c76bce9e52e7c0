"""No test without the marker `spark` starts a Java, so that `make quick` keeps its promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

TESTS = """
import subprocess
import pytest

def java(*arguments):
    return subprocess.run(["sh", "-c", '"$JAVA_HOME/bin/java" "$@"', "sh", *arguments], capture_output=True, text=True)

def test_careless():
    java("-cp", "spark.jar")

@pytest.mark.spark
def test_marked():
    assert java("-cp", "spark.jar").stdout == "a real one"

def test_that_asks_for_the_version():
    assert 'version "17' in java("-version").stderr

@pytest.fixture(scope="session")
def started():
    java("-cp", "fixture.jar")

def test_of_a_careless_fixture(started):
    pass

def test_without_the_variable(monkeypatch):
    monkeypatch.delenv("JAVA_HOME")
    subprocess.run(["java", "-cp", "path.jar"])
"""
RUN_S = 240


def test_start_of_a_java_fails_every_test_but_those_of_spark(tmp_path: Path) -> None:
    """The start is noticed in a process of the test too, and in a fixture; ignoring its error is no help."""
    (tmp_path / "test_made_up.py").write_text(TESTS, encoding="utf-8")
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nprintf 'a real one'\n")
    java.chmod(0o755)
    command = [sys.executable, "-m", "pytest", "-p", "tests.java_trap", "--rootdir", str(tmp_path), "-c", "/dev/null"]
    command += ["-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function", str(tmp_path)]
    environment = {**os.environ, "JAVA_HOME": str(java.parent.parent)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    errors = re.findall(r"^ERROR \S+::(\w+)(.*)", done.stdout, re.MULTILINE)
    careless = ["test_careless", "test_of_a_careless_fixture", "test_without_the_variable"]
    assert [name for name, _ in errors] == careless, done.stdout
    assert "the test started a Java (java -cp spark.jar): give it the marker `spark`" in done.stdout
    assert "5 passed" in done.stdout
