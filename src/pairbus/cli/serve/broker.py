"""`pairbus broker`: run namespaces until SIGTERM."""

from __future__ import annotations

import gc
import logging
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.cli.loop import run, stop_event
from pairbus.cli.standard import one_line
from pairbus.errors import ConfigError

if TYPE_CHECKING:
    from pairbus.broker import Broker, NamespaceOptions

DEFAULT_PORT = 5672
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
LEVELS = ("debug", "info", "warning", "error")

EPILOG = """\b
Examples:
  # one namespace, 'local', on port 5672, data in ./pairbus-data
  pairbus broker
  # two namespaces in one process
  pairbus broker --namespace contoso=5672 --namespace fabrikam=5673 --data /var/lib/pairbus
  # any free port, nothing kept
  pairbus broker --namespace test=0 --data :memory:
  # entities and keys from the official emulator's configuration, on all the ports where SDKs look for it
  pairbus broker --config Config.json --listen-http 5300 --listen-tls 443
"""


PORT_MAX = 65_535

Namespaces = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace",
        envvar="PAIRBUS_NAMESPACES",
        metavar="NAME=PORT",
        help="A namespace and its port (0 = any free one). Repeat for more; in the variable, separate by spaces.",
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        envvar="PAIRBUS_ALLOWED_HOSTS",
        metavar="NAME",
        help="A DNS name under which clients call this broker. Repeat for more.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="PAIRBUS_CONFIG",
        metavar="FILE",
        help="Entities and keys, in the official emulator's JSON format.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command(name="broker", epilog=EPILOG)(broker)


def broker(
    namespace: Namespaces = None,
    data: Annotated[
        str, typer.Option(envvar="PAIRBUS_DATA", metavar="DIR", help="Folder for the data, or ':memory:'.")
    ] = "pairbus-data",
    config: ConfigFile = None,
    host: Annotated[
        str, typer.Option(envvar="PAIRBUS_HOST", help="Address to listen on; any but the loopback needs --key.")
    ] = "127.0.0.1",
    allowed_host: AllowedHosts = None,
    listen_http: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]PORT", help="An extra port for HTTP: .NET looks for the emulator's on 5300."),
    ] = None,
    listen_tls: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]PORT", help="An extra port for TLS and web sockets: SDKs look for them on 443."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(envvar="PAIRBUS_KEY", help="Key of RootManageSharedAccessKey. Default: the emulator's."),
    ] = None,
    meter: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for a ledger of all clients' operations. Default: no ledger is written."
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Keep Azure's limits and habits on the wire, for tests of clients.")
    ] = False,
    operations_per_second: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Refuse operations of a namespace beyond this rate as server-busy. Default: none."
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = "warning",
    trace: Annotated[bool, typer.Option("--trace", help="Log every AMQP frame.")] = False,
) -> None:
    """Run durable Service Bus namespaces on this machine.

    Prints one line per namespace with its connection string, then 'ready'. SIGTERM or Ctrl-C ends it cleanly.
    """
    check_extra()
    log_lines(log_level, is_trace=trace)
    if not data:
        raise ConfigError("--data is empty; name a folder, or ':memory:'")
    from pairbus.broker import Broker
    from pairbus.dashboard.lazy import lazy_page

    namespaces = _namespaces(namespace or [], config)
    extra = [("--listen-http", text) for text in listen_http or []] + [
        ("--listen-tls", text) for text in listen_tls or []
    ]
    namespaces = _with_extra_ports(namespaces, extra)
    if operations_per_second is not None:
        if not 0 < operations_per_second < float("inf"):
            raise ConfigError(f"--operations-per-second is {operations_per_second}; accepted is a number above 0")
        namespaces = [replace(options, operations_per_s=operations_per_second) for options in namespaces]
    served = Broker(
        namespaces,
        data=None if data == ":memory:" else Path(data),
        host=host,
        key=key,
        allowed_hosts=allowed_host or (),
        meter=meter,
        progress=lambda sentence: print(sentence, file=sys.stderr, flush=True),
        trace=trace_frame if trace else None,
        strict=strict,
        page=lazy_page,
    )
    run(serve(served, [options.name for options in namespaces], tells_socket=data == ":memory:"))


def log_lines(level: str, *, is_trace: bool = False) -> None:
    """Write the log to standard error, a line for each record."""
    if level.lower() not in LEVELS:
        raise ConfigError(f"--log-level is {level!r}; allowed are {', '.join(LEVELS)}")
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(_Lines("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(level=logging.DEBUG if is_trace else getattr(logging, level.upper()), handlers=[lines])
    logging.getLogger("aiohttp").setLevel(logging.WARNING)


def check_extra() -> None:
    """Check that the extra is installed. Other commands work without it, and do not import it."""
    try:
        import pairbus.broker  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(f"this command needs {error.name}: pip install 'pairbus[broker]'") from error


def _namespaces(texts: list[str], config: Path | None) -> list[NamespaceOptions]:
    from pairbus.broker import NamespaceOptions, load_config

    ports: dict[str, int] = {}
    for text in texts:
        name, _, port = text.partition("=")
        if not _NAME.fullmatch(name) or not port.isdecimal():
            raise ConfigError(f"--namespace {text!r}: NAME=PORT is needed, for example contoso={DEFAULT_PORT}")
        _check_port("--namespace", text, port)
        if name.lower() in map(str.lower, ports):
            raise ConfigError(f"--namespace {text!r}: the namespace {name!r} was given twice")
        ports[name] = int(port)
    configured = (
        {configured_options.name: configured_options for configured_options in load_config(config)}
        if config is not None
        else {}
    )
    for offset, name in enumerate(configured):
        if not texts:
            ports[name] = DEFAULT_PORT + offset
        elif name not in ports:
            raise ConfigError(f"{config} describes namespace {name!r}; give it a port with --namespace {name}=PORT")
    if not ports:
        ports["local"] = DEFAULT_PORT
    options = []
    for name, number in ports.items():
        configured_options = configured.get(name)
        if configured_options is None:
            options.append(NamespaceOptions(name, number))
        else:
            options.append(
                NamespaceOptions(
                    name,
                    number,
                    queues=tuple(configured_options.queues),
                    keys=tuple(configured_options.keys),
                    topics=tuple(configured_options.topics),
                    subscriptions=tuple(configured_options.subscriptions),
                    operations_per_s=configured_options.operations_per_s,
                )
            )
    return options


def _check_port(option: str, text: str, port: str) -> None:
    if int(port) > PORT_MAX:
        raise ConfigError(f"{option} {text!r}: {port} is no port; ports are 1 to {PORT_MAX}, and 0 is any free one")


def _with_extra_ports(namespaces: list[NamespaceOptions], extra_ports: list[tuple[str, str]]) -> list[NamespaceOptions]:
    """Add further ports to the namespaces that they name; without a name, to the only one.

    Every port takes every protocol. The names of the options say which protocol clients expect there.
    """
    ports: dict[str, list[int]] = {options.name.lower(): [] for options in namespaces}
    for option, text in extra_ports:
        name, _, port = text.rpartition("=")
        if not port.isdecimal():
            raise ConfigError(f"{option} {text!r}: PORT or NAME=PORT is needed, for example 5300")
        _check_port(option, text, port)
        if not name and len(namespaces) > 1:
            raise ConfigError(f"{option} {text!r}: there are several namespaces; say which, as NAME={port}")
        key = name.lower() or namespaces[0].name.lower()
        if key not in ports:
            raise ConfigError(f"{option} {text!r}: there is no namespace {name!r}")
        ports[key].append(int(port))
    return [replace(options, extra_ports=tuple(ports[options.name.lower()])) for options in namespaces]


async def serve(
    broker: Broker, names: list[str], *, tells_socket: bool, last: Callable[[], Sequence[str]] = tuple
) -> None:
    """Serve until a signal; `last` has lines to print when everything listens."""
    stopped = stop_event()
    async with broker:
        if tells_socket and broker.control_socket is not None:  # in a folder whose name cannot be guessed
            print(f"control socket: {broker.control_socket}", file=sys.stderr, flush=True)
        for name in names:
            print(f"{name} {broker.connection_string(name)}")
        print("ready", flush=True)
        for line in last():
            print(line, flush=True)
        _suggest(broker.connection_string(names[0]))
        gc.freeze()  # the collector has to find rare cycles of messages, not to walk through all modules
        await stopped.wait()


def _suggest(connection_string: str) -> None:
    """Print three commands to try next, on a terminal only: programs read up to the line `ready`."""
    if not sys.stderr.isatty():
        return
    lines = (
        "try next, in another terminal:",
        f"  export PAIRBUS_CONNECTION_STRING={shlex.quote(connection_string)}",
        "  pairbus queue create orders",
        "  pairbus message send orders 'hello'",
        "  pairbus message peek orders",
    )
    print("\n".join(lines), file=sys.stderr, flush=True)


class _Lines(logging.Formatter):
    """Format of the log: a record is one line, whatever a client sends. Only a traceback has lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))


def trace_frame(direction: str, channel: int, text: str) -> None:
    logging.getLogger("pairbus.trace").debug("%s ch%d %s", direction, channel, text)
