"""`pairbus emulator`: one namespace with the ports, variables and files of Microsoft's emulator."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairbus.auth.hosts import is_loopback
from pairbus.cli.loop import run
from pairbus.cli.serve.broker import (
    DEFAULT_PORT,
    LEVELS,
    PORT_MAX,
    AllowedHosts,
    check_extra,
    log_lines,
    serve,
    trace_frame,
)
from pairbus.errors import ConfigError

if TYPE_CHECKING:
    from pairbus.broker import NamespaceOptions
    from pairbus.broker.config.file import NamespaceConfig

HTTP_PORT = 5300
CONFIG_FILE = Path("/ServiceBus_Emulator/ConfigFiles/Config.json")
UNNEEDED = ("ACCEPT_EULA", "SQL_SERVER", "MSSQL_SA_PASSWORD", "SQL_WAIT_INTERVAL")
"Variables of Microsoft's emulator without a meaning here: there is no database, and no licence to accept."
SERVED = "Emulator Service is Successfully Up!"
"Line for which tools wait that start containers."

EPILOG = """\b
Examples:
  pairbus emulator
  pairbus emulator --config Config.json
  pairbus emulator --http-port 5301 --data emulator-data
"""


def register(app: typer.Typer) -> None:
    app.command(name="emulator", epilog=EPILOG)(emulator)


def emulator(
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="PAIRBUS_CONFIG",
            metavar="FILE",
            help=f"Entities, in the emulator's JSON. Default: {CONFIG_FILE} if it exists, or queue.1 and topic.1.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=PORT_MAX, help="Port for AMQP; 0 = any free one.")] = DEFAULT_PORT,
    http_port: Annotated[
        int,
        typer.Option(envvar="EMULATOR_HTTP_PORT", min=0, max=PORT_MAX, help="Port for administration and GET /health."),
    ] = HTTP_PORT,
    data: Annotated[
        str, typer.Option(envvar="PAIRBUS_DATA", metavar="DIR", help="Folder for the data, or ':memory:'.")
    ] = ":memory:",
    host: Annotated[str, typer.Option(envvar="PAIRBUS_HOST", help="Address to listen on.")] = "127.0.0.1",
    allowed_host: AllowedHosts = None,
    key: Annotated[
        str | None,
        typer.Option(envvar="PAIRBUS_KEY", help="Key of RootManageSharedAccessKey. Default: the emulator's."),
    ] = None,
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = "warning",
    trace: Annotated[bool, typer.Option("--trace", help="Log every AMQP frame.")] = False,
) -> None:
    """Serve one namespace in the place of Microsoft's emulator, until SIGTERM or Ctrl-C.

    It has the ports 5672 (AMQP) and 5300 (administration, GET /health), the well-known key, the configuration file and
    the variables of the emulator, and prints the line for which Testcontainers waits. Entities of the file that exist
    in DIR get the settings of the file; nothing is deleted.
    """
    check_extra()
    log_lines(log_level, is_trace=trace)
    if not data:
        raise ConfigError("--data is empty; name a folder, or ':memory:'")
    from pairbus.broker import WELL_KNOWN_KEY, Broker
    from pairbus.dashboard.lazy import lazy_page

    _say_unneeded(os.environ)
    options = _options(_configured(config), port, http_port)
    keys = {text for each in options.keys for text in (each.key, each.secondary_key)} | {key or WELL_KNOWN_KEY}
    if not is_loopback(host) and WELL_KNOWN_KEY in keys:
        _say(
            f"WARNING: LISTENING ON {host} WITH THE WELL-KNOWN KEY. EVERYBODY WHO REACHES THE PORTS CAN READ, SEND AND"
            " DELETE. PUBLISH THEM ON 127.0.0.1 ONLY, OR SET PAIRBUS_KEY."
        )
    served = Broker(
        [options],
        data=None if data == ":memory:" else Path(data),
        host=host,
        key=key,
        allowed_hosts=allowed_host or (),
        progress=_say,
        trace=trace_frame if trace else None,
        page=lazy_page,
        emulator=True,
    )

    def last() -> list[str]:
        [number] = served.extra_ports(options.name)
        return [f"administration and health: http://localhost:{number}", SERVED]

    run(serve(served, [options.name], tells_socket=False, last=last))


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _say_unneeded(variables: Mapping[str, str]) -> None:
    unneeded = [name for name in UNNEEDED if name in variables]
    if unneeded:
        _say(f"ignored, because neither a database nor a licence is needed: {', '.join(unneeded)}")


def _configured(file: Path | None) -> NamespaceConfig:
    """Read the configuration. Keys that are not known are told and ignored, as the emulator ignores them."""
    from pairbus.broker.config.file import load_config
    from pairbus.broker.config.first_namespace import first_namespace

    if file is None and not CONFIG_FILE.exists():
        _say(f"no --config, and no {CONFIG_FILE}: serving queue.1 and topic.1")
        return first_namespace()
    file = file or CONFIG_FILE
    namespaces = load_config(file, lambda sentence: _say(f"ignored: {sentence}"))
    if len(namespaces) != 1:
        raise ConfigError(
            f"{file} has {len(namespaces)} namespaces, and the emulator serves one; `pairbus broker` serves several"
        )
    return namespaces[0]


def _options(config: NamespaceConfig, port: int, http_port: int) -> NamespaceOptions:
    from pairbus.broker import NamespaceOptions

    return NamespaceOptions(
        config.name,
        port,
        queues=tuple(config.queues),
        keys=tuple(config.keys),
        topics=tuple(config.topics),
        subscriptions=tuple(config.subscriptions),
        extra_ports=(http_port,),
        is_updated=True,
        operations_per_s=config.operations_per_s,
    )
