"""Makes service credentials of Databricks' Unity Catalog usable for `credential=MODULE:CALLABLE`.

Option `databricks.serviceCredential=NAME` becomes the credential `pairbus.spark.databricks:named_HEX`: a
`MODULE:CALLABLE` has no arguments, and names at Databricks may have any character, so the name is part of the
attribute, in hexadecimal digits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from pairbus.errors import ConfigError

_PREFIX = "named_"


def credential_name(service_credential: str) -> str:
    """Return the option `credential` that stands for a service credential."""
    return f"{__name__}:{_PREFIX}{service_credential.encode().hex()}"


def __getattr__(name: str) -> Callable[[], object]:
    """Return a function that makes the service credential whose name is in the attribute."""
    digits = name.removeprefix(_PREFIX)
    if digits == name:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(_provider, bytes.fromhex(digits).decode())


def _provider(service_credential: str) -> object:
    try:
        module: Any = importlib.import_module("databricks.service_credentials")
    except ImportError as error:
        raise ConfigError(
            f"option databricks.serviceCredential={service_credential}: only the Python of a Databricks cluster has"
            f" service credentials ({error}); elsewhere give credential=default, or credential=MODULE:CALLABLE with a"
            " function of your own"
        ) from None
    provider: object = module.getServiceCredentialsProvider(service_credential)
    return provider
