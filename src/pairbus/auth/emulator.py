"""The embedded broker as an emulator on this machine: its port, and the CA certificate to trust.

The CA certificate is fetched from the broker and trusted: a program that can listen on that port of this machine could
read the certificate file as well.
"""

from __future__ import annotations

import http.client
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from pairbus.errors import ConfigError

DEFAULT_PORT = 5672
WELL_KNOWN_KEY = "SAS_KEY_VALUE"  # the official emulator's; good enough on loopback, refused elsewhere
CA_SIZE_MAX = 64 * 1024  # a certificate has less than 1 KB


@contextmanager
def ca_file_with(certificate: bytes) -> Iterator[str]:
    """Yield the name of a file with the certificate, which is removed at the end."""
    name = write_ca_file(certificate)
    try:
        yield name
    finally:
        os.unlink(name)


def write_ca_file(certificate: bytes) -> str:
    """Write the certificate to a new file, because the SDK accepts only a file; returns its name."""
    descriptor, name = tempfile.mkstemp(prefix="pairbus-ca-", suffix=".pem")
    with os.fdopen(descriptor, "wb") as file:
        file.write(certificate)
    return name


def fetch_ca(authority: str, timeout_s: float) -> bytes:
    """Fetch the broker's CA certificate. OSError when nothing answers, ConfigError when another server answers."""
    # http.client, not urllib, which would send requests for a loopback address to a proxy of the environment.
    connection = http.client.HTTPConnection(authority, timeout=timeout_s)
    try:
        connection.request("GET", "/ca.pem")
        answer = connection.getresponse()
        body = answer.read(CA_SIZE_MAX)
    except http.client.HTTPException as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from None
    finally:
        connection.close()
    if answer.status != 200 or b"BEGIN CERTIFICATE" not in body:
        raise ConfigError(
            f"{authority} gave no CA certificate (status {answer.status}): the server there is not a Pairbus broker"
        )
    return body
