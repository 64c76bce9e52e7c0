"""`pairbus proxy`: outages in front of any AMQP endpoint, until SIGTERM."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli import namespace_options
from pairbus.cli.admin.connection import ConnectionString
from pairbus.cli.loop import run, stop_event
from pairbus.cli.serve.broker import LEVELS, check_extra, log_lines
from pairbus.cli.serve.control_client import SOCKET_NAME
from pairbus.cli.trust import CaFile
from pairbus.errors import ConfigError

if TYPE_CHECKING:
    import ssl

    from pairbus.proxy import Proxy

EPILOG = f"""\b
Examples:
  # before a broker on this machine; prints the connection string for clients
  pairbus proxy --connection-string @broker.txt --listen 127.0.0.1:6000 --control proxy.sock
  pairbus fault add stall --entity orders --for 10s --control proxy.sock
  # before Azure: clients speak AMQP in the clear with the proxy, the proxy speaks TLS with Azure
  pairbus proxy --connection-string @azure.txt --control proxy.sock
  # clients speak TLS with the proxy, which has a certificate of its own in ./proxy-tls
  pairbus proxy --connection-string @azure.txt --tls proxy-tls --control proxy.sock
  pairbus fault add certificate --for 1m --control proxy.sock
  # before any other AMQP endpoint; TLS passes as it is, and whole connections can fail
  pairbus proxy --target broker.example:5671 --pass-tls --listen 127.0.0.1:6000
\b
{namespace_options.KEPT_OFF.format(variables="PAIRBUS_CONNECTION_STRING")}"""


@dataclass(frozen=True, slots=True)
class _Place:
    """Address of the target, and the address by which clients would reach it."""

    host: str
    port: int
    wants_tls: bool
    connection_string: str | None


def register(app: typer.Typer) -> None:
    """Add the command `pairbus proxy`."""
    app.command(name="proxy", epilog=EPILOG)(proxy)


def proxy(
    target: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Endpoint to which the proxy connects. Default: the namespace of CS."),
    ] = None,
    connection_string: ConnectionString = None,
    listen: Annotated[
        str, typer.Option(metavar="[HOST:]PORT", help="Address for clients; port 0 = any free one.")
    ] = "127.0.0.1:0",
    tls_to_target: Annotated[
        bool, typer.Option("--tls-to-target", help="Speak TLS to --target. A namespace in Azure always gets TLS.")
    ] = False,
    ca_file: CaFile = None,
    tls: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="End the TLS of clients with a certificate made in DIR; they trust DIR/ca.pem."
        ),
    ] = None,
    tls_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name in that certificate, besides loopback. Repeat for more."),
    ] = None,
    pass_tls: Annotated[
        bool,
        typer.Option("--pass-tls", help="Clients speak TLS with the target itself: the proxy sees encrypted bytes."),
    ] = False,
    control: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Control socket, for pairbus fault. Default: one in a temporary folder."),
    ] = None,
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = "warning",
) -> None:
    """Stand in front of an AMQP endpoint, Azure included, and play the faults of pairbus fault.

    Prints the values with which clients connect to it, then 'ready'. SIGTERM or Ctrl-C ends it cleanly.
    """
    check_extra()
    log_lines(log_level)
    place = _place(target, connection_string, wants_tls=tls_to_target)
    if pass_tls and tls_to_target:
        raise ConfigError(
            "--pass-tls leaves TLS to the clients, and --tls-to-target takes it over: choose one of the two"
        )
    from pairbus.proxy import Proxy

    with _socket_path(control) as path:
        made = Proxy(
            place.host,
            place.port,
            listen=_listen(listen),
            tls_to_target=_trust(ca_file) if place.wants_tls and not pass_tls else None,
            tls=tls,
            tls_names=tls_name or (),
            pass_tls=pass_tls,
            control=path,
        )
        run(_serve(made, place.connection_string, path, tells_socket=control is None))


def _place(target: str | None, connection_string: str | None, *, wants_tls: bool) -> _Place:
    from pairbus.auth import connection_string as strings

    if target is not None:
        host, port = strings.host_and_port(target, "--target")
        if port is None:
            raise ConfigError(f"--target {target!r} names no port; for example {host}:5671")
        return _Place(host, port, wants_tls, None)
    text = namespace_options.connection_string(
        connection_string, "--target or --connection-string", "PAIRBUS_CONNECTION_STRING"
    )
    parsed = strings.ConnectionString.parse(text)
    port = parsed.port or (5672 if parsed.emulator else 5671)
    return _Place(parsed.host, port, wants_tls or not parsed.emulator, text)


def _listen(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--listen {text!r}: PORT or HOST:PORT is needed, for example 127.0.0.1:6000")
    return host.strip("[]") or "127.0.0.1", int(port)


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    import ssl

    return ssl.create_default_context(cafile=ca_file)


@contextmanager
def _socket_path(control: Path | None) -> Iterator[Path]:
    if control is not None:
        yield control
    else:
        with tempfile.TemporaryDirectory(prefix="pairbus-proxy-") as folder:
            yield Path(folder) / SOCKET_NAME


async def _serve(proxy: Proxy, connection_string: str | None, control: Path, *, tells_socket: bool) -> None:
    stopped = stop_event()
    async with proxy:
        if tells_socket:  # in a folder whose name cannot be guessed
            print(f"control socket: {control}", file=sys.stderr, flush=True)
        for line in _ways(proxy, connection_string):
            print(line)
        print("ready", flush=True)
        await stopped.wait()


def _ways(proxy: Proxy, connection_string: str | None) -> list[str]:
    """Return how clients reach the proxy, line by line."""
    lines = [f"address {proxy.address}"]
    if connection_string is not None:
        through_proxy = proxy.connection_string(connection_string)
        lines.append(f"connection_string {through_proxy}")
        if proxy.address not in through_proxy:
            lines.append(f"custom_endpoint_address sb://{proxy.address} (with transport_type=TransportType.Amqp)")
    if proxy.ca_file is not None:
        lines.append(f"connection_verify {proxy.ca_file}")
    return lines
