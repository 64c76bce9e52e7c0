"""Place of a secret: `env:NAME`, an environment variable, or `@FILE`. Options show the place, never the secret."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pairbus.errors import ConfigError

PLACES = ("env:", "@")


def is_secret_place(text: str) -> bool:
    """Return True when the text names a place and is not a secret itself."""
    return any(text.startswith(kind) and text != kind for kind in PLACES)


def read_secret(place: str, option: str, missing: str) -> str:
    """Return the secret, which the host that asks must have at this place.

    ConfigError names the option, what is missing, the place and the host, never the text that was found there.
    """
    where = f"{option}: {missing} in {place} on host {socket.gethostname()}"
    if place.startswith("env:"):
        text = os.environ.get(place.removeprefix("env:"), "")
    else:
        try:
            text = Path(place.removeprefix("@")).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}: {error}") from None
    if not text.strip():
        raise ConfigError(f"{where}: it is not set, or empty")
    return text.strip()
