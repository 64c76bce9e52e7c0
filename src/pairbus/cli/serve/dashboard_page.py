"""The page of `pairbus dashboard`: its namespaces, how it reaches them, and the right to open it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairbus.auth.connection_string import ConnectionString
from pairbus.auth.emulator import DEFAULT_PORT, WELL_KNOWN_KEY
from pairbus.auth.hosts import is_loopback
from pairbus.cli.pair.status_facts import as_json
from pairbus.cli.pair.status_look import Looking
from pairbus.cli.pipeline.syphon import name_of
from pairbus.client.sides import Side
from pairbus.dashboard.ages import ages_of
from pairbus.dashboard.api import Page
from pairbus.dashboard.facts import same_namespace
from pairbus.dashboard.guard import Guard, same_token
from pairbus.dashboard.metrics import PageMetrics
from pairbus.dashboard.targets import SOCKET_NAME, AzureTarget, BrokerTarget, WatchedNamespace
from pairbus.dashboard.watch import Pairing, Watch
from pairbus.errors import ConfigError, PairbusError
from pairbus.host.control.asking import ask
from pairbus.ledger.prices import load
from pairbus.telemetry.metrics.serving import TOKEN_VARIABLE
from pairbus.transport.threads import in_thread

LOOK_TIMEOUT_S = 2.0
PEEKED = 20  # messages of each backlog queue, for the age of the oldest
CONTROL_S = 5.0
ROLES = ("primary", "secondary")


@dataclass(frozen=True, slots=True)
class Given:
    """A namespace of the command line."""

    side: Side
    text: str | None
    "Connection string; None: a host with a credential."

    @property
    def connection(self) -> ConnectionString | None:
        return None if self.text is None else ConnectionString.parse(self.text)

    @property
    def has_well_known_key(self) -> bool:
        """True when the key is the emulator's, which is public."""
        return self.connection is not None and self.connection.key == WELL_KNOWN_KEY


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Options of the command."""

    given: list[Given]
    "One namespace, or primary and secondary."
    primary_name: str | None = None
    rotation: int = 10
    controls: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    hosts: frozenset[str] = frozenset()
    ca_file: Path | None = None


async def make_page(options: PageOptions) -> tuple[Page, str | None]:
    """Make the page, and the token that it needs. ConfigError: a control socket does not belong to a namespace."""
    namespaces = options.given
    sockets = await in_thread("pairbus-control", _sockets, options.controls)
    targets: list[WatchedNamespace] = []
    for one, role in zip(namespaces, ROLES, strict=False):
        targets.append(await _target(one, role if len(namespaces) == 2 else None, sockets, options.ca_file))
    unused = set(options.controls) - {sockets[port][0] for one in namespaces if (port := _port(one)) in sockets}
    if unused:
        raise ConfigError(f"--control {unused.pop()}: no namespace of this broker was given as primary or secondary")
    if len(targets) == 2 and targets[0].name == targets[1].name:
        targets[0].name, targets[1].name = (f"{one.name} ({one.role})" for one in targets)
    pairing = _pairing(options, targets)
    watch = Watch(" and ".join(one.name for one in targets), targets, pairing, load("standard"))
    is_open = is_loopback(options.host) and all(one.has_well_known_key for one in namespaces)
    token = None if is_open else secrets.token_urlsafe(24)
    metrics = PageMetrics(watch, options.host, options.hosts, _metrics_token(options, token))
    guard = Guard(None if token is None else same_token(token), options.hosts)
    page = Page(watch, guard, metrics=metrics.answer)
    if pairing.look is None:
        pairing.look = ages_of(watch, page.carrier)
    return page, token


def _metrics_token(options: PageOptions, token: str | None) -> str | None:
    """Return the token that the page of metrics needs; None on the loopback, unless a proxy may be in front of it.

    ConfigError: the token of the environment is empty.
    """
    metrics_token = os.environ.get(TOKEN_VARIABLE)
    if metrics_token == "":
        raise ConfigError(f"{TOKEN_VARIABLE} is empty: remove it, or give it a text that nobody guesses")
    if metrics_token is not None:
        return metrics_token
    return None if is_loopback(options.host) and not options.hosts else token


def _pairing(options: PageOptions, targets: list[WatchedNamespace]) -> Pairing:
    sides = [one.side for one in options.given]

    def is_ours(client: dict[str, Any]) -> bool:
        if len(sides) == 1:
            return any(same_namespace(client[role], sides[0].name) for role in ROLES)
        return all(same_namespace(client[role], side.name) for role, side in zip(ROLES, sides, strict=True))

    if len(sides) == 1:
        return Pairing(is_ours)
    name = name_of(options.primary_name, sides[0].authority)
    pairing = Pairing(is_ours, names=(targets[0].name, targets[1].name), primary_name=name)
    pairing.look = _look_of(
        Looking(sides[0], sides[1], name, options.rotation, PEEKED, LOOK_TIMEOUT_S),
        None if targets[1].can_switch else targets[1],
    )
    return pairing


def _look_of(looking: Looking, billed: WatchedNamespace | None) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def look() -> dict[str, Any]:
        state = as_json(await looking.look(), None)
        if billed is not None:  # a listing, and peeks of the queues that are not empty
            billed.operations += 1 + sum(bool(queue["peeked"]) for queue in state["queues"])
        return state

    return look


def _port(one: Given) -> int | None:
    match = one.connection
    return None if match is None or not match.emulator else match.port or DEFAULT_PORT


def _sockets(controls: tuple[Path, ...]) -> dict[int | None, tuple[Path, str]]:
    """Ask each control socket for its namespaces: port → the socket as it was given, and the namespace's name."""
    sockets: dict[int | None, tuple[Path, str]] = {}
    for control in controls:
        path = control / SOCKET_NAME if control.is_dir() else control
        for name in _asked(path, "/")["namespaces"]:
            sockets[_asked(path, f"/{name}/$pairbus/overview").get("port")] = control, name
    return sockets


def _asked(path: Path, route: str) -> dict[str, Any]:
    status, reply = ask(path, "GET", route, None, CONTROL_S)
    if status != 200 or not isinstance(reply, dict):
        raise ConfigError(f"--control {path} is not the control socket of a broker of this version (status {status})")
    return reply


async def _target(
    one: Given, role: str | None, sockets: dict[int | None, tuple[Path, str]], ca_file: Path | None
) -> WatchedNamespace:
    port = _port(one)
    if port is None or one.text is None:
        return AzureTarget(one.side.name.partition(".")[0], one.side, role=role)
    control, name = sockets.get(port, (None, one.side.name))
    target = BrokerTarget(name, one.side, one.text, role=role, control=control, ca_file=ca_file)
    if control is None:
        try:
            target.name = (await target.overview())["name"]
        except PairbusError:  # unreachable, or another emulator: it is shown as such under its address
            return target
    return target
