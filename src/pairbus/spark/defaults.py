"""Folders that need not be named on one machine: below the user's state folder, one for each purpose and name.

    $XDG_STATE_HOME/pairbus/KIND/NAME          (without the variable: ~/.local/state)

Stagings of streams and journals of syphons stand there by default when Spark runs on a local master. On a cluster
other hosts would not see them, so there the option is required.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from pairbus.errors import ConfigError

READABLE_MAX = 80  # characters of the names that a folder shows; what makes it unique is the digest behind them


def state_folder(kind: str, *names: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the absolute path of a folder for `kind` ("staging", "journal") and names, such as namespace and entity.

    The same names give the same folder, in every process of this user; case counts for nothing, as in the service. The
    folder is not made. ConfigError when the user has no home folder.
    """
    base = environment.get("XDG_STATE_HOME") or ""
    try:
        # The standard says that a relative path in the variable is to be ignored.
        root = Path(base) if os.path.isabs(base) else Path("~/.local/state").expanduser()
    except RuntimeError as error:
        raise ConfigError(f"no state folder for {kind}: {error}; set XDG_STATE_HOME") from None
    lowered = [name.lower() for name in names]
    shown = re.sub(r"[^a-z0-9.]+", "-", "-".join(lowered)).strip("-.")[:READABLE_MAX]
    digest = hashlib.sha256("\0".join(lowered).encode()).hexdigest()[:12]
    return root / "pairbus" / kind / f"{shown}-{digest}"


def is_local_master(master: str | None) -> bool:
    """Tell whether a master URL of Spark means this machine alone."""
    return master is not None and re.fullmatch(r"local(\[[^\]]*\])?", master) is not None
