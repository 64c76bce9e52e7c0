"""`pairbus fault`: outages of a running broker or proxy, on demand."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from pairbus.cli.admin.connection import KEPT_OFF, ConnectionString
from pairbus.cli.admin.entity_options import Json
from pairbus.cli.serve.control_client import Control, ControlClient, NamespaceName, control_client
from pairbus.cli.table import print_table
from pairbus.cli.trust import CaFile
from pairbus.faults import DIRECTIONS, KINDS, Fault

_app = typer.Typer(
    help="Stage outages of a running broker or proxy: refuse, stall, throttle, delay and more.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=KEPT_OFF,
)

COLUMNS = ("id", "kind", "entity", "direction", "left_s", "probability", "left", "numbers")
_OWN = {"id", "left_s", "left"}

Kind = Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.", show_default=False)]
Entity = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", help="Path of entities, * for any text; topic/Subscriptions/name. Default: all."),
]
Direction = Annotated[str | None, typer.Option(help=f"One of {', '.join(DIRECTIONS)}. Default: all that KIND has.")]
For = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="DURATION",
        help="Duration: 30s, 5m, 1h. Default: until the fault is cleared; restart: 10 seconds.",
    ),
]
Probability = Annotated[
    float | None, typer.Option(help="Probability that the fault applies to an operation, above 0 and up to 1.")
]
Count = Annotated[int | None, typer.Option(help="Number of operations or connections to which the fault applies.")]
Delay = Annotated[
    str | None, typer.Option("--delay", metavar="DURATION", help="For latency, delay and slow-disk: time to add.")
]
Jitter = Annotated[
    str | None, typer.Option("--jitter", metavar="DURATION", help="For latency and delay: random time to add, at most.")
]
BytesPerSecond = Annotated[
    float | None, typer.Option("--bytes-per-second", help="For bandwidth: bytes a second that pass.")
]
LinkIdle = Annotated[
    str | None, typer.Option("--link-idle", metavar="DURATION", help="For idle-close: how long a sender may be idle.")
]
ConnectionIdle = Annotated[
    str | None,
    typer.Option(
        "--connection-idle", metavar="DURATION", help="For idle-close: how long a connection may be without links."
    ),
]
Number = Annotated[
    int | None, typer.Argument(metavar="[ID]", help="Number of the fault. Default: all.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands `pairbus fault …`."""
    app.add_typer(_app, name="fault")


@_app.command(
    epilog="""\b
Examples:
  # sends to orders are throttled for half a minute
  pairbus fault add throttle --entity orders --direction send --for 30s
  # the namespace is gone, and only the control socket still answers
  pairbus fault add refuse --control pairbus-data/control.sock --namespace contoso
  # one send in ten is stored and its answer lost
  pairbus fault add drop-answer --direction send --probability 0.1
  # messages become receivable two minutes late
  pairbus fault add delay --entity 'orders*' --delay 2m
"""
)
def add(
    kind: Kind,
    entity: Entity = None,
    direction: Direction = None,
    for_: For = None,
    probability: Probability = None,
    count: Count = None,
    delay: Delay = None,
    jitter: Jitter = None,
    bytes_per_second: BytesPerSecond = None,
    link_idle: LinkIdle = None,
    connection_idle: ConnectionIdle = None,
    control: Control = None,
    namespace: NamespaceName = None,
    connection_string: ConnectionString = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """Switch a fault on. Prints its number, with which it can be cleared."""
    options = {
        "kind": kind,
        "entity": entity,
        "direction": direction,
        "for_s": for_,
        "probability": probability,
        "count": count,
        "delay_s": delay,
        "jitter_s": jitter,
        "bytes_per_s": bytes_per_second,
        "link_s": link_idle,
        "connection_s": connection_idle,
    }
    fields = {name: value for name, value in options.items() if value is not None}
    Fault.read(fields)  # before a connection is opened
    added = control_client(control, namespace, connection_string, ca_file).call("POST", "faults", fields)
    typer.echo(json.dumps(added, indent=2) if as_json else added["id"])


@_app.command(name="list", epilog="Example: pairbus fault list --control pairbus-data/control.sock --json")
def list_(
    control: Control = None,
    namespace: NamespaceName = None,
    connection_string: ConnectionString = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """List the faults that are on."""
    faults = control_client(control, namespace, connection_string, ca_file).call("GET", "faults")
    if as_json:
        typer.echo(json.dumps(faults, indent=2))
    else:
        print_table(COLUMNS, [_row(one) for one in faults])


@_app.command(
    epilog="""\b
Examples:
  pairbus fault clear 3
  pairbus fault clear --control pairbus-data/control.sock
"""
)
def clear(
    number: Number = None,
    control: Control = None,
    namespace: NamespaceName = None,
    connection_string: ConnectionString = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """Switch one fault off, or all of them. Everything that they held back goes on at once."""
    client: ControlClient = control_client(control, namespace, connection_string, ca_file)
    cleared = client.call("DELETE", "faults" if number is None else f"faults/{number}")
    typer.echo(json.dumps(cleared, indent=2) if as_json else f"{cleared['cleared']} cleared")


def _row(one: dict[str, Any]) -> list[Any]:
    common = {"kind", "entity", "direction", "for_s", "probability", "count"} | _OWN
    numbers = " ".join(f"{name}={value:g}" for name, value in one.items() if name not in common)
    shown = {**one, "numbers": numbers or None}
    return ["-" if shown[column] is None else shown[column] for column in COLUMNS]
