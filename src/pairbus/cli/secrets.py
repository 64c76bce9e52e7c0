"""Connection strings that need not stand on the command line, where every process of the machine can read them."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from pairbus.errors import ConfigError

KEPT_OFF = (
    "Connection strings also come from {variables}, from a file as @FILE, or from a variable as env:NAME, which keep"
    " the keys off the command line."
)
"For the help of a command; `variables` are those that it reads."


def connection_string(given: str | None, option: str, variable: str) -> str:
    """As it was given, or what the file of `@FILE` or the variable of `env:NAME` holds.

    `option` and `variable` are named when it is missing.
    """
    if not given:
        raise typer.BadParameter(f"no connection string: give {option} CS or {option} @FILE, or set {variable}")
    if given in ("@", "env:"):
        raise typer.BadParameter(f"{option} {given} names no {'file' if given == '@' else 'variable'}")
    if given.startswith("env:"):
        text = os.environ.get(given[4:], "").strip()
        if not text:
            raise ConfigError(f"{option}: the environment variable {given[4:]} is not set, or empty")
        return text
    if not given.startswith("@"):
        return given
    try:
        text = Path(given[1:]).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option}: the connection string cannot be read: {error}") from None
    if not text:
        raise ConfigError(f"{option}: the file {given[1:]} is empty")
    return text
