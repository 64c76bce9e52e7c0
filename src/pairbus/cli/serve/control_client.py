"""The switches of a running broker, called over its control socket or over the port of a namespace."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.auth.connection_string import ConnectionString
from pairbus.auth.emulator import DEFAULT_PORT, fetch_ca
from pairbus.auth.hosts import in_url, is_loopback
from pairbus.auth.sas import sign
from pairbus.cli import namespace_options
from pairbus.errors import ConfigError, FaultNotFound, PairbusError
from pairbus.host.control.asking import UnixConnection

if TYPE_CHECKING:
    import ssl

SOCKET_NAME = "control.sock"
WAIT_S = 10.0
TOKEN_S = 300

Control = Annotated[
    Path | None,
    typer.Option(
        "--control",
        metavar="FILE",
        help="Control socket of the broker, DIR/control.sock or DIR, or of pairbus proxy;"
        " it answers during every fault.",
    ),
]
NamespaceName = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", help="With --control: the namespace, where the broker has several."),
]


class ControlClient:
    """Client of the routes `/$pairbus/…` of one namespace."""

    def __init__(self, connection: http.client.HTTPConnection, place: str, prefix: str, token: str | None) -> None:
        self._connection = connection
        self._place = place
        self._prefix = prefix
        self._headers = {} if token is None else {"Authorization": token}

    def call(self, method: str, route: str, body: dict[str, Any] | None = None) -> Any:
        """Return the broker's answer; its refusal is a PairbusError with its text."""
        return _call(self._connection, self._place, method, f"{self._prefix}/$pairbus/{route}", self._headers, body)


def control_client(
    control: Path | None, namespace: str | None, connection_string: str | None, ca_file: Path | None
) -> ControlClient:
    """Connect by the control socket if one is given, otherwise by the connection string."""
    if control is not None:
        control = control / SOCKET_NAME if control.is_dir() else control
        unix, place = UnixConnection(control, WAIT_S), str(control)
        return ControlClient(unix, place, f"/{_namespace_of(unix, place, namespace)}", None)
    if namespace is not None:
        raise typer.BadParameter("--namespace goes with --control: a connection string names its namespace")
    if not connection_string:
        raise typer.BadParameter(
            "no broker is named: give --control DIR, its data folder; or --connection-string CS or @FILE,"
            " or set PAIRBUS_CONNECTION_STRING"
        )
    text = namespace_options.connection_string(connection_string, "--connection-string", "PAIRBUS_CONNECTION_STRING")
    parsed = ConnectionString.parse(text)
    port = parsed.port or (DEFAULT_PORT if parsed.emulator else 443)
    authority = f"{in_url(parsed.host)}:{port}"
    if parsed.key_name is not None and parsed.key is not None:
        token = sign(f"https://{authority}", parsed.key_name, parsed.key, int(time.time()) + TOKEN_S)
    else:
        token = parsed.signature or ""
    connection = http.client.HTTPSConnection(authority, timeout=WAIT_S, context=_trust(parsed, authority, ca_file))
    return ControlClient(connection, authority, "", token)


def _namespace_of(unix: UnixConnection, place: str, wanted: str | None) -> str:
    """Return the namespace to talk to: the wanted one, or the only one."""
    match _call(unix, place, "GET", "/", {}, None):
        case {"namespaces": [str(), *_] as names}:
            matching = [str(name) for name in names if wanted is None or str(name).lower() == wanted.lower()]
        case _:
            raise PairbusError(f"{place} is no control socket of a broker or a proxy")
    known = " | ".join(map(str, names))
    if not matching:
        raise ConfigError(f"{place} has no namespace {wanted!r:.80}; say which: --namespace {known}")
    if len(matching) > 1:
        raise ConfigError(f"{place} has several namespaces; say which: --namespace {known}")
    return matching[0]


def _trust(parsed: ConnectionString, authority: str, ca_file: Path | None) -> ssl.SSLContext:
    import ssl

    if ca_file is not None:
        return ssl.create_default_context(cafile=ca_file)
    if not parsed.emulator:
        return ssl.create_default_context()
    if not is_loopback(parsed.host):
        raise ConfigError(f"{parsed.host} is not this machine: copy the broker's ca.pem and give it with --ca-file")
    try:
        return ssl.create_default_context(cadata=fetch_ca(authority, WAIT_S).decode("ascii"))
    except OSError as error:
        raise PairbusError(_unreachable(authority, error)) from None


def _call(
    connection: http.client.HTTPConnection,
    place: str,
    method: str,
    path: str,
    headers: dict[str, str],
    body: dict[str, Any] | None,
) -> Any:
    text = None if body is None else json.dumps(body)
    try:
        connection.request(method, path, text, headers)
        answer = connection.getresponse()
        body_text = answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise PairbusError(_unreachable(place, error)) from None
    finally:
        connection.close()  # the next request opens it again
    try:
        reply = json.loads(body_text)
    except ValueError:
        reply = {"error": f"status {answer.status}: {body_text[:300]}"}
    if answer.status < 300:
        return reply
    kind = FaultNotFound if answer.status == 404 else ConfigError if answer.status == 400 else PairbusError
    reason = reply.get("error", body_text[:300]) if isinstance(reply, dict) else body_text[:300]
    raise kind(f"refused by {place}: {reason}")


def _unreachable(place: str, error: Exception) -> str:
    reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return (
        f"cannot reach {place}: {reason}; is the broker running? A fault may have shut the port away:"
        " --control DIR/control.sock always answers"
    )
