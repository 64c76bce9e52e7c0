"""Token credentials by name, as options and commands give them: `default`, or `MODULE:CALLABLE`."""

from __future__ import annotations

import importlib
import inspect
import re
import socket
from functools import cache
from typing import Any

from pairbus.errors import ConfigError

_DEFAULT = "azure.identity:DefaultAzureCredential"
_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_credential_name(text: str) -> bool:
    """Tell whether the text is written as the name of a credential."""
    return text == "default" or _CALLABLE.fullmatch(text) is not None


@cache
def made_credential(name: str) -> object:
    """Make the credential, once in a process. ConfigError names the package to install, or the mistake."""
    on_host = f"credential {name} on host {socket.gethostname()}"
    module, _, attribute = (_DEFAULT if name == "default" else name).partition(":")
    try:
        make: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        fix = "; pip install azure-identity" if name == "default" else ""
        raise ConfigError(f"{on_host}: {error}{fix}") from None
    try:
        made = make()
    except TypeError as error:
        raise ConfigError(f"{on_host}: it cannot be called without arguments: {error}") from error
    # An async credential belongs to the event loop on which it was first used, but each task has its own loop.
    if not hasattr(made, "get_token") or inspect.iscoroutinefunction(made.get_token):
        raise ConfigError(f"{on_host} made a {type(made).__name__}, which has no get_token that is not async")
    return made
