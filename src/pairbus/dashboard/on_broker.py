"""Serves the page on the port of a namespace of the broker; it looks at the namespace in process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from pairbus.auth.connection_string import ConnectionString
from pairbus.auth.emulator import WELL_KNOWN_KEY
from pairbus.auth.hosts import in_url, is_loopback
from pairbus.auth.sas import MANAGE, KeyRing
from pairbus.broker.kit.switches import answer_kit
from pairbus.broker.monitoring.overview import overview
from pairbus.broker.namespace import Namespace
from pairbus.dashboard.ages import ages_of
from pairbus.dashboard.api import Page
from pairbus.dashboard.event_log import EventLog
from pairbus.dashboard.facts import same_namespace
from pairbus.dashboard.guard import Guard, Opens
from pairbus.dashboard.watch import Pairing, Watch
from pairbus.errors import ConfigError, PairbusError
from pairbus.faults import Fault
from pairbus.ledger.prices import load
from pairbus.transport.threads import in_thread

if TYPE_CHECKING:
    from pairbus.client.sides import Side

ROOT_KEY_NAME = "RootManageSharedAccessKey"


class OwnTarget:
    """A namespace of this process. Messages go over its port, like those of other clients."""

    pace_s = 1.0
    can_switch = True
    operations = 0
    role: str | None = None

    def __init__(self, namespace: Namespace, connection_string: str) -> None:
        self.name = namespace.name
        parsed = ConnectionString.parse(connection_string)
        self.address = f"{in_url(parsed.host)}:{parsed.port}"
        self._namespace = namespace
        self._connection_string = connection_string
        self._side: Side | None = None

    async def side(self) -> Side:
        # Imported in a thread, when needed: the SDK takes a quarter of a second, and the event loop belongs to the
        # broker.
        if self._side is None:
            self._side = await in_thread("pairbus-import", _side_of, self._connection_string)
        return self._side

    async def overview(self) -> dict[str, Any]:
        return overview(self._namespace)

    async def switch(self, method: str, route: str, body: dict[str, Any] | None) -> Any:
        name, _, number = route.partition("/")
        if name == "faults":
            return self._faults(method, body or {}, number)
        status, reply = await answer_kit(self._namespace, method, name, json.dumps(body or {}).encode())
        if status >= 400:
            raise (ConfigError if status < 500 else PairbusError)(reply["error"])
        return reply

    def _faults(self, method: str, body: dict[str, Any], number: str) -> Any:
        faults = self._namespace.faults
        if method == "POST":
            added = faults.add_fault(Fault.read(body))
            return next(fault for fault in faults.list() if fault["id"] == added.id)
        if method == "DELETE":
            return {"cleared": faults.clear(int(number) if number else None)}
        return faults.list()

    async def changes(self) -> AsyncGenerator[None, None]:
        changes, has_changed = self._namespace.changes, asyncio.Event()
        changes.follow(has_changed.set)
        has_changed.set()
        try:
            while not changes.is_over:
                await has_changed.wait()
                has_changed.clear()
                yield
        finally:
            changes.leave(has_changed.set)

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""


def opens_with_manage(keys: KeyRing) -> Opens:
    """Return the check of a token that is `KEY NAME:KEY`, or the key of the root policy alone; it must have Manage."""

    def opens(token: str) -> bool:
        name, _, key = token.partition(":")
        grants = (keys.login(ROOT_KEY_NAME, token), keys.login(name, key))
        return any(grant is not None and MANAGE in grant.rights and not grant.entity_path for grant in grants)

    return opens


def _side_of(connection_string: str) -> Side:
    from pairbus.client.sides import Side

    return Side.from_connection_string(connection_string)


def page_of(namespace: Namespace, connection_string: str, host: str, hosts: frozenset[str], log: EventLog) -> Page:
    """Make the page of one namespace. It is open on the loopback as long as the well-known key is the root key."""
    target = OwnTarget(namespace, connection_string)
    well_known = namespace.keys.login(ROOT_KEY_NAME, WELL_KNOWN_KEY)
    opens = None if is_loopback(host) and well_known is not None else opens_with_manage(namespace.keys)
    authority = target.address

    def is_ours(client: dict[str, Any]) -> bool:
        return any(same_namespace(client[side], authority) for side in ("primary", "secondary"))

    pairing = Pairing(is_ours)
    watch = Watch(namespace.name, [target], pairing, load("standard"), log)
    page = Page(watch, Guard(opens, hosts), is_on_broker=True)
    pairing.look = ages_of(watch, page.carrier)
    return page
