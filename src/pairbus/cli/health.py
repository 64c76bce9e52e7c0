"""`pairbus health`: ask a broker whether it can store messages now."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Annotated

import typer

from pairbus.access.connection_string import host_and_port
from pairbus.cli.standard import one_line, say
from pairbus.errors import ConfigError

DEFAULT_ADDRESS = "127.0.0.1:5672"
DEFAULT_PORT = 5672
ANSWER_BYTES_MAX = 64 * 1024

EPILOG = """\b
Examples:
  pairbus health
  pairbus health 127.0.0.1:5673 --timeout 2
\b
Exit codes: 0 the broker can store messages, 1 it cannot or does not answer, 2 wrong usage.
"""


def register(app: typer.Typer) -> None:
    """Add the command `pairbus health`."""
    app.command(name="health", epilog=EPILOG)(health)


def health(
    address: Annotated[str, typer.Argument(metavar="HOST[:PORT]", help="Port of any namespace.")] = DEFAULT_ADDRESS,
    timeout: Annotated[float, typer.Option(min=0.1, max=600.0, help="Seconds to wait for the answer.")] = 5.0,
) -> None:
    """Ask a broker whether it can store messages now; for health checks of containers and services."""
    try:
        host, port = host_and_port(address, "HOST[:PORT]")
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    place = f"[{host}]" if ":" in host else host
    is_healthy, told = ask(f"http://{place}:{port or DEFAULT_PORT}/health", timeout)
    if is_healthy:
        typer.echo(told)
        return
    say(f"pairbus: {address}: {told}")
    raise typer.Exit(1)


def ask(url: str, timeout_s: float) -> tuple[bool, str]:
    """Return whether the broker at `url` is healthy, and its own text or the reason why it did not answer."""
    # A proxy of the environment is for the internet, not for a health check in the local network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            return _read(answer.status, answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as refused:
        with refused:
            return _read(refused.code, refused.read(ANSWER_BYTES_MAX))
    except urllib.error.URLError as error:
        return False, f"no answer: {error.reason}"
    except OSError as error:
        return False, f"no answer: {error}"


def _read(status: int, body: bytes) -> tuple[bool, str]:
    try:
        told = json.loads(body)
        words = one_line(str(told["message"]))
        is_healthy = bool(told["status"] == "healthy")
    except (ValueError, KeyError, TypeError):
        return False, f"this is not the port of a broker: it answered {status} without a health report"
    return is_healthy and status == 200, words
