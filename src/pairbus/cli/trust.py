"""`--ca-file` of the commands that connect to a namespace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pairbus.errors import ConfigError


def _with_certificates(path: Path | None) -> Path | None:
    """Check the file before a connection is opened: a command that waits for a namespace would try for ever."""
    if path is not None:
        import ssl  # when needed: it takes as long as all the rest of a command that only prints its help

        try:
            ssl.create_default_context(cafile=path)
        except OSError as error:
            raise ConfigError(f"--ca-file: no certificates can be read from {path}: {error.strerror}") from None
    return path


CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        help="Certificates to trust; not needed for a broker on this machine.",
        metavar="FILE",
        callback=_with_certificates,
    ),
]
