"""The one reader of secrets that options name by their place: `env:NAME`, an environment variable, or `@FILE`.

Commands, streams of Spark and the dashboard read connection strings by it, and Spark the secrets of storages too.
Options show the place, and no error shows the secret.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pairbus.errors import ConfigError

VARIABLE = "env:"
FILE = "@"


def is_secret_place(text: str) -> bool:
    """Return True when the text names a place and is not a secret itself."""
    return text.startswith((VARIABLE, FILE)) and text not in (VARIABLE, FILE)


def read_secret(place: str, option: str) -> str:
    """Return the secret at a place. ConfigError begins with the option, and says what is wrong with the place.

    A file may begin with a byte order mark, as editors on Windows write it.
    """
    if place.startswith(VARIABLE):
        name = place.removeprefix(VARIABLE)
        text = os.environ.get(name, "").strip()
        if not text:
            raise ConfigError(f"{option}: the environment variable {name} is not set, or empty")
        return text
    file = place.removeprefix(FILE)
    try:
        text = Path(file).read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{option}: the file {file} holds no secret: it is not text in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{option}: the file {file} cannot be read: {error.strerror}") from None
    if not text:
        raise ConfigError(f"{option}: the file {file} is empty")
    return text


def read_secret_of_host(place: str, option: str, missing: str) -> str:
    """Return the secret, which each host of a cluster must have at this place: the error names the host too."""
    return read_secret(place, f"{option}: {missing} in {place} on host {socket.gethostname()}")
