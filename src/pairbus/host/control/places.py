"""The folder of the control sockets of a user: `ROLE-PID-NUMBER.sock`, mode 0600, in a folder of mode 0700.

The folder is `$PAIRBUS_CONTROL_DIR`, or `pairbus` in `$XDG_RUNTIME_DIR`, or `~/.local/state/pairbus/run`. A process
that serves a socket (a service, cron) may have another environment than the one that asks, so the last two folders are
both searched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from pairbus.host.control.sockets import has_unix_sockets, is_stale

FOLDER = "PAIRBUS_CONTROL_DIR"
FOLDER_MODE = 0o700
OTHERS = 0o077

_numbers = count(1)


def folders() -> list[Path]:
    """Return the folders that may have sockets; new sockets are made in the first."""
    if named_folder := os.environ.get(FOLDER):
        return [Path(named_folder)]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    candidates = [Path(runtime) / "pairbus"] if runtime and Path(runtime).is_dir() else []
    with suppress(RuntimeError):  # a user without a home
        candidates.append(Path.home() / ".local" / "state" / "pairbus" / "run")
    return candidates


def new_path(role: str) -> Path:
    """Return the path for a socket of this process, in a folder of this user only; OSError when there is none."""
    places = folders()
    if not places:
        raise OSError(f"there is no folder for it: set {FOLDER}")
    folder = places[0]
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & OTHERS:
        raise OSError(f"{folder} is open to other users: make it yours alone with chmod 700")
    return folder / f"{role}-{os.getpid()}-{next(_numbers)}.sock"


def served(role: str | None = None) -> list[Path]:
    """Return the sockets of running processes. Sockets that killed processes left behind are removed."""
    sockets = []
    for path in _named() if has_unix_sockets() else ():
        if is_stale(path):
            with suppress(OSError):  # another process removed it first
                path.unlink()
        elif role is None or role_of(path) == role:
            sockets.append(path)
    return sockets


def role_of(path: Path) -> str:
    return path.name.partition("-")[0]


def pid_of(path: Path) -> int | None:
    """Return the process id that the name of a socket has."""
    _, _, rest = path.name.partition("-")
    number = rest.partition("-")[0]
    return int(number) if number.isdecimal() else None


def _named() -> Iterator[Path]:
    for folder in folders():
        with suppress(OSError):
            yield from sorted(path for path in folder.iterdir() if path.suffix == ".sock" and path.name[0] != ".")
