"""`pairbus health`: ask a broker whether it can store messages now."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Annotated

import typer

from pairbus.auth.connection_string import host_and_port
from pairbus.cli.duration_options import duration_option
from pairbus.cli.standard import one_line, say
from pairbus.errors import ConfigError

DEFAULT_PORT = 5672
LOOPBACKS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # of a broker that listens on all addresses
ANSWER_BYTES_MAX = 64 * 1024

EPILOG = """\b
Examples:
  pairbus health
  pairbus health 127.0.0.1:5673 --timeout 2s
  PAIRBUS_NAMESPACES=contoso=5674 pairbus health
\b
Exit codes: 0 the broker can store messages, 1 it cannot or does not answer, 2 wrong usage.
"""


def register(app: typer.Typer) -> None:
    """Add the command `pairbus health`."""
    app.command(name="health", epilog=EPILOG)(health)


def health(
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="[HOST[:PORT]]",
            help="Port of a namespace. Default: every namespace of PAIRBUS_NAMESPACES, or 127.0.0.1:5672.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float, duration_option("--timeout", low=0.1, high=600, help="How long each namespace may take to answer.")
    ] = 5,
) -> None:
    """Ask a broker whether it can store messages now; for health checks of containers and services.

    Without an address the command reads the variables of the broker: each namespace of PAIRBUS_NAMESPACES must be
    healthy. It is asked at PAIRBUS_HOST, or on the loopback where that means all addresses.
    """
    try:
        addresses = configured(os.environ) if address is None else [address]
        urls = [_url(each) for each in addresses]
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    last_error = ""
    for each, url in zip(addresses, urls, strict=True):
        is_healthy, last_error = ask(url, timeout)
        if not is_healthy:
            say(f"pairbus: {each}: {last_error}")
            raise typer.Exit(1)
    typer.echo(last_error)


def configured(variables: Mapping[str, str]) -> list[str]:
    """Return the addresses of the namespaces that a broker with these environment variables serves."""
    host = variables.get("PAIRBUS_HOST") or "127.0.0.1"
    host = LOOPBACKS.get(host, host)
    place = f"[{host}]" if ":" in host else host
    addresses = []
    for text in variables.get("PAIRBUS_NAMESPACES", "").split():
        port = text.partition("=")[2]
        if not port.isdecimal() or not 0 < int(port) <= 65535:
            raise ConfigError(f"PAIRBUS_NAMESPACES has {text!r}: NAME=PORT is needed, or give HOST:PORT of a namespace")
        addresses.append(f"{place}:{int(port)}")
    return addresses or [f"{place}:{DEFAULT_PORT}"]


def _url(address: str) -> str:
    host, port = host_and_port(address, "HOST[:PORT]")
    place = f"[{host}]" if ":" in host else host
    return f"http://{place}:{port or DEFAULT_PORT}/health"


def ask(url: str, timeout_s: float) -> tuple[bool, str]:
    """Return whether the broker at `url` is healthy, and its own text or the reason why it did not answer."""
    try:
        return _read(*_answer(url, timeout_s))
    except urllib.error.URLError as error:
        return False, f"no answer: {error.reason}"
    except OSError as error:
        return False, f"no answer: {error}"
    except http.client.HTTPException:
        return False, "this is not the port of a broker: it did not answer in HTTP"


def _answer(url: str, timeout_s: float) -> tuple[int, bytes]:
    """Return status and body of the answer, whatever its status."""
    # A proxy of the environment is for the internet, not for a health check in the local network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            return answer.status, answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read(ANSWER_BYTES_MAX)


def _read(status: int, body: bytes) -> tuple[bool, str]:
    try:
        state = json.loads(body)
        words = one_line(str(state["message"]))
        is_healthy = bool(state["status"] == "healthy")
    except (ValueError, KeyError, TypeError):
        return False, f"this is not the port of a broker: it answered {status} without a health report"
    return is_healthy and status == 200, words
