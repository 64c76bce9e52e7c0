"""Files that a command writes at its end, checked before it begins."""

from __future__ import annotations

import os
from pathlib import Path

from pairbus.errors import ConfigError


def check_output(option: str, file: Path | None) -> None:
    """Raise ConfigError when the file surely cannot be written; no file is touched."""
    if file is None:
        return
    if not file.parent.is_dir():
        raise ConfigError(f"{option} {file}: the folder {file.parent} does not exist")
    if file.is_dir():
        raise ConfigError(f"{option} {file}: that is a folder")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"{option} {file}: it may not be written")
