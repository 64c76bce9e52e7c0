"""The embedded broker as an emulator on this machine: where its administration listens, and whom to trust there.

On this machine, whoever can answer on that port could read the certificate file as well; so it is fetched and trusted.
"""

from __future__ import annotations

import http.client

from pairbus.errors import ConfigError

DEFAULT_PORT = 5672
CA_SIZE_MAX = 64 * 1024  # a certificate has less than 1 KB


def with_port(text: str, authority: str) -> str:
    """The connection string with a port, which the emulator's may omit.

    The SDK's AMQP side then takes 5672 and its HTTPS side 443; the broker has one port for both.
    """
    parts = [part.partition("=") for part in text.strip().split(";") if part.strip()]
    return ";".join(
        f"{name}=sb://{authority}" if name.strip().lower() == "endpoint" else f"{name}={value}"
        for name, _, value in parts
    )


def fetch_ca(authority: str, timeout_s: float) -> bytes:
    """The CA certificate of the broker there. OSError when nobody answers, ConfigError when it is another server."""
    # http.client, not urllib: proxies from the environment have no business with a loopback address.
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
            f"{authority} gave no CA certificate (status {answer.status}): what listens there is not a Pairbus broker"
        )
    return body
