"""`pairbus client`: the operator's control of paired clients that run on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pairbus.cli.admin.entity_options import Json
from pairbus.cli.standard import one_line
from pairbus.cli.table import print_table
from pairbus.errors import ConfigError, EntityNotFound, PairbusError
from pairbus.host.control.asking import ask, describe_all
from pairbus.host.control.places import folders, pid_of, served

WAIT_S = 10.0  # for an answer: the client's own event loop has five seconds
COLUMNS = ("pid", "program", "pair", "entity", "state", "for", "sent", "diverted", "spooled", "failed", "cause")
COUNTS = ("sent", "diverted", "spooled", "failed")
REASONS = {400: ConfigError, 404: EntityNotFound}

_app = typer.Typer(
    help="Look at paired clients that run on this machine, and fail their entities over by hand.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="A client is found when it was made with control_socket=True, or with PAIRBUS_CONTROL_SOCKET=1 in its"
    " environment, by the user who asks.",
)

Entities = Annotated[list[str] | None, typer.Argument(metavar="ENTITY", help="Queues or topics.", show_default=False)]
AllEntities = Annotated[bool, typer.Option("--all-entities", help="Every entity for which the client has a sender.")]
New = Annotated[bool, typer.Option("--new", help="Also entities for which the client has no sender yet.")]
Pid = Annotated[int | None, typer.Option(metavar="PID", help="The client in this process.")]
Socket = Annotated[Path | None, typer.Option(metavar="FILE", help="The client with this control socket.")]
AllClients = Annotated[bool, typer.Option("--all-clients", help="Every client that is found.")]


def register(app: typer.Typer) -> None:
    """Add the commands `pairbus client …`."""
    app.add_typer(_app, name="client")


@_app.command(
    name="list",
    epilog="""\b
Examples:
  pairbus client list
  pairbus client list --json
  pairbus client list --socket /run/orders/pairbus.sock
""",
)
def list_(socket: Socket = None, as_json: Json = False) -> None:
    """List the clients that are found, with the state of each entity, for how long, its counts and its cause.

    An entity from which a processor or a receiver gets no messages has a row NOT_RECEIVING.
    Exits with 1 when there is no client, or when a client gives no answer.
    """
    paths = [socket] if socket is not None else served("client")
    if not paths:
        raise PairbusError(_none_found())
    clients = [_checked(path, one) for path, one in zip(paths, describe_all(paths, WAIT_S), strict=True)]
    known = [{"socket": str(path), **one} for path, one in zip(paths, clients, strict=True) if isinstance(one, dict)]
    if as_json:
        typer.echo(json.dumps(known, indent=2, ensure_ascii=False))
    else:
        print_table(COLUMNS, [row for one in known for row in _rows(one)])
    for error in clients:
        if isinstance(error, PairbusError):
            typer.echo(f"pairbus: {error}", err=True)
    if len(known) < len(clients):
        raise typer.Exit(1)


@_app.command(
    name="force-failover",
    epilog="""\b
Examples:
  # before planned work on the primary: the only client that is found
  pairbus client force-failover orders
  # one of several clients
  pairbus client force-failover orders invoices --pid 4711
  # everything that any client of this machine sends to
  pairbus client force-failover --all-entities --all-clients
""",
)
def force_failover(
    entities: Entities = None,
    all_entities: AllEntities = False,
    new: New = False,
    pid: Pid = None,
    socket: Socket = None,
    all_clients: AllClients = False,
    as_json: Json = False,
) -> None:
    """Send messages of entities to the backlog until `pairbus client force-healthy` is called.

    Pings do not bring such an entity back. Clients that are started later, or run on another machine, are not affected.
    Several entities are forced all or none in each client. Exits with 1 when a client refuses.
    """
    body = _wanted(entities, all_entities=all_entities, new=new)
    _force("force-failover", body, _chosen(pid, socket, all_clients=all_clients), as_json=as_json)


@_app.command(
    name="force-healthy",
    epilog="""\b
Examples:
  pairbus client force-healthy orders
  pairbus client force-healthy --all-entities --all-clients
""",
)
def force_healthy(
    entities: Entities = None,
    all_entities: AllEntities = False,
    new: New = False,
    pid: Pid = None,
    socket: Socket = None,
    all_clients: AllClients = False,
    as_json: Json = False,
) -> None:
    """Send messages of entities to the primary again, whatever is known about it.

    Where the primary is still away, their sends fail, and the entities fail over again by themselves.
    """
    body = _wanted(entities, all_entities=all_entities, new=new)
    _force("force-healthy", body, _chosen(pid, socket, all_clients=all_clients), as_json=as_json)


def _checked(path: Path, reply: dict[str, Any] | PairbusError) -> dict[str, Any] | PairbusError:
    """Return what a client said; an error when another program answered."""
    if isinstance(reply, PairbusError) or reply["role"] == "client":
        return reply
    return PairbusError(f"{path} is no control socket of a client: its role is {reply['role']!r:.80}")


def _chosen(pid: int | None, socket: Path | None, *, all_clients: bool) -> list[Path]:
    """Return the sockets of the chosen clients: one, or all of them."""
    if (pid is not None) + (socket is not None) + all_clients > 1:
        raise typer.BadParameter("give one of --pid, --socket and --all-clients")
    if socket is not None:
        return [socket]
    sockets = served("client")
    if not sockets:
        raise PairbusError(_none_found())
    if all_clients:
        return sockets
    of_pid = [path for path in sockets if pid is None or pid_of(path) == pid]
    if not of_pid:
        pids = ", ".join(str(one) for one in sorted({pid_of(path) or 0 for path in sockets}))
        raise PairbusError(f"no client is found in process {pid}; clients are found in: {pids}")
    if len(of_pid) > 1:
        raise PairbusError(f"several clients are found; say which: {_choices(of_pid)} --all-clients")
    return of_pid


def _choices(paths: Sequence[Path]) -> str:
    pids = [pid_of(path) for path in paths]
    return "".join(
        f"--pid {pid} | " if pids.count(pid) == 1 else f"--socket {path} | "
        for pid, path in zip(pids, paths, strict=True)
    )[:-1]


def _wanted(entities: list[str] | None, *, all_entities: bool, new: bool) -> dict[str, Any]:
    if bool(entities) is all_entities:
        raise typer.BadParameter("give the names of entities, or --all-entities")
    return {"all": True} if all_entities else {"entities": entities, "new": new}


def _force(what: str, body: dict[str, Any], paths: Sequence[Path], *, as_json: bool) -> None:
    done: list[dict[str, Any]] = []
    refused: list[PairbusError] = []
    for path in paths:
        try:
            done.append({"socket": str(path), "pid": pid_of(path), **_told(path, what, body)})
        except PairbusError as error:
            refused.append(error)
    if as_json:
        typer.echo(json.dumps(done, indent=2, ensure_ascii=False))
    else:
        _print_forced(done)
    # A client of many without a sender for an entity has nothing to do; a name that none of them knows is wrong.
    for refusal in refused:
        typer.echo(f"pairbus: {one_line(str(refusal))}", err=True)
    if any(not (done and isinstance(refusal, EntityNotFound)) for refusal in refused):
        raise typer.Exit(1)


def _told(path: Path, what: str, body: dict[str, Any]) -> dict[str, Any]:
    status, reply = ask(path, "POST", f"/{what}", body, WAIT_S)
    if status == 200 and isinstance(reply, dict):
        return reply
    reason = reply.get("error", reply) if isinstance(reply, dict) else reply
    raise REASONS.get(status, PairbusError)(f"refused by {path}: {reason}")


def _print_forced(done: Sequence[dict[str, Any]]) -> None:
    for one in done:
        who = one["socket"] if one["pid"] is None else f"pid {one['pid']}"
        for entity in one["entities"]:
            typer.echo(one_line(f"{who}: {entity['path']} {entity['before']} -> {entity['after']}"))
        if not one["entities"]:
            typer.echo(f"{who}: it has no senders yet")


def _rows(client: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    """Yield a row of `COLUMNS` for each entity, and for each from which nothing comes; a client without any has one."""
    from pairbus.cli.pair.status_facts import duration

    names = [name for name in (client["primary"], client["secondary"]) if name is not None]
    who = (client["pid"], client["program"], " | ".join(names))
    unpaired = " (not paired)" if len(names) == 2 and not client["paired"] else ""
    if not client["entities"]:
        yield (*who, "-", client["ended"] or "-", "-", *("-" for _ in COUNTS), "-")
    for entity in client["entities"]:
        counts = (entity.get(name, 0) for name in COUNTS)
        state = client["ended"] or entity["state"] + unpaired
        cells = (entity["path"], state, duration(entity["for_s"]), *counts, entity["cause"] or "-")
        yield (*who, *(one_line(cell) if isinstance(cell, str) else cell for cell in cells))
    for each in (*client.get("processors", ()), *client.get("receivers", ())):
        if each["outage"] is not None:
            counts = ("-" for _ in COUNTS)
            yield (*who, one_line(each["path"]), "NOT_RECEIVING", duration(each["outage_s"]), *counts, each["outage"])


def _none_found() -> str:
    places = " and ".join(str(folder) for folder in folders())
    return (
        "no client with a control socket is found; make clients with control_socket=True, or start their programs with"
        f" PAIRBUS_CONTROL_SOCKET=1, as this user. Looked in: {places}"
    )
