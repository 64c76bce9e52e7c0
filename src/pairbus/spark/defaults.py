"""Names the default folders on one machine: each purpose and name has one, below the user's state folder.

    $XDG_STATE_HOME/pairbus/KIND/NAME          (without the variable: ~/.local/state)

Staging locations of streams and journals of syphons are there by default when Spark runs on a local master. On a
cluster other hosts would not see them, so there the option is required.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from pairbus.errors import ConfigError

ANCESTORS_MAX = 10
_PROCESSES = Path("/proc")  # Linux; elsewhere `ps` is asked
READABLE_MAX = 80  # characters of the names in a folder's name; the digest behind them makes it unique


def state_folder(kind: str, *names: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the absolute path of a folder for `kind` ("staging", "journal") and names, such as namespace and entity.

    The same names give the same folder, in every process of this user; case is ignored, as in the service. The
    folder is not made. ConfigError when the user has no home folder.
    """
    base = environment.get("XDG_STATE_HOME") or ""
    try:
        # The standard says that a relative path in the variable is to be ignored.
        root = Path(base) if os.path.isabs(base) else Path("~/.local/state").expanduser()
    except RuntimeError as error:
        raise ConfigError(f"no state folder for {kind}: {error}; set XDG_STATE_HOME") from None
    return root / "pairbus" / kind / folder_name(*names)


def folder_name(*names: str) -> str:
    """Return the name of a folder for names; no folder is looked for, so it is the same on every host."""
    lowered = [name.lower() for name in names]
    readable = re.sub(r"[^a-z0-9.]+", "-", "-".join(lowered)).strip("-.")[:READABLE_MAX]
    digest = hashlib.sha256("\0".join(lowered).encode()).hexdigest()[:12]
    return f"{readable}-{digest}"


def is_local_master(master: str | None) -> bool:
    """Tell whether a master URL of Spark means this machine alone."""
    return master is not None and re.fullmatch(r"local(\[[^\]]*\])?", master) is not None


def runs_on_local_master() -> bool:
    """Tell whether this process belongs to a Spark on this machine alone; False when that cannot be known.

    Spark does not tell its Python processes what master it has. The command line of the JVM above them does.
    """
    for arguments in _commands_above(os.getpid()):
        if any(argument.startswith("org.apache.spark.") for argument in arguments):
            return is_local_master(_master_in(arguments))
    return False


def _master_in(arguments: list[str]) -> str | None:
    master = None
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "--master":
            master = following
        elif argument.startswith(("spark.master=", "--master=", "-Dspark.master=")):
            master = argument.partition("=")[2]
    return master


def _commands_above(pid: int) -> Iterator[list[str]]:
    """Yield the command lines of the parent of a process, of the parent's parent, and so on."""
    for _ in range(ANCESTORS_MAX):
        try:
            pid = _parent_of(pid)
            arguments = _arguments_of(pid)
        except (OSError, ValueError, IndexError, subprocess.SubprocessError):
            return  # not visible to this user, or gone
        if pid <= 1:
            return
        yield arguments


def _parent_of(pid: int) -> int:
    if _PROCESSES.is_dir():
        # The name of the program, in parentheses, may contain spaces and parentheses.
        return int((_PROCESSES / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return int(_ps("ppid=", pid))


def _arguments_of(pid: int) -> list[str]:
    if _PROCESSES.is_dir():
        return (_PROCESSES / str(pid) / "cmdline").read_text(errors="replace").split("\0")
    return _ps("command=", pid).split()


def _ps(column: str, pid: int) -> str:
    return subprocess.run(["ps", "-o", column, "-p", str(pid)], capture_output=True, text=True, check=True).stdout
