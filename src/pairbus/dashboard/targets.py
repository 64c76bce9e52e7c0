"""Reaches namespaces for the dashboard: a broker by its switches, any other namespace by its administration.

A target never waits longer than its time-out, so a silent namespace does not keep the others from being shown.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from azure.core.exceptions import AzureError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.auth.connection_string import ConnectionString
from pairbus.auth.emulator import DEFAULT_PORT, fetch_ca
from pairbus.auth.hosts import in_url, is_loopback
from pairbus.auth.sas import sign
from pairbus.client.sides import Side
from pairbus.errors import ConfigError, EntityNotFound, FaultNotFound, PairbusError
from pairbus.syphon.decide.redriving import WINDOW_MAX_S
from pairbus.transport.threads import in_thread

ANSWER_S = 3.0
SILENT_S = 12.0  # silence of a stream of changes: more than two of its heartbeats
CHANGE_S = 30.0  # for a switch: a move of the clock does all work that falls due
ADMIN_S = 20.0
TOKEN_S = 300
PAGE_SIZE = 100  # entities in one answer of administration
ANSWER_SIZE_MAX = 64 << 20  # bytes; some 200 for each entity
SOCKET_NAME = "control.sock"
_STATUSES: dict[int, type[PairbusError]] = {400: ConfigError, 404: EntityNotFound}


class WatchedNamespace(Protocol):
    """One namespace that is watched."""

    name: str
    "Name in URLs of the page."
    role: str | None
    "primary, secondary, or None for a namespace alone."
    pace_s: float
    "Pause between two looks."
    can_switch: bool
    "True for a broker, whose faults and clock can be switched."

    address: str
    "Address: host, for an emulator host:port."
    operations: int
    "Calls that this page made and that Azure bills; 0 for a broker, whose meter counts all."

    async def side(self) -> Side:
        """Return the access for messages and for administration."""
        ...

    async def overview(self) -> dict[str, Any]:
        """Return entities by path and, for a broker, faults, clock and meter. PairbusError when it does not answer."""
        ...

    async def switch(self, method: str, route: str, body: dict[str, Any] | None) -> Any:
        """Call a switch of the broker. PairbusError with its refusal, or when there are no switches."""
        ...

    def changes(self) -> AsyncGenerator[None, None]:
        """Yield once when the broker can be followed, then for each change; messages that come and go are no change.

        Ends, or raises PairbusError, when the broker is unreachable.
        """
        ...

    async def close(self) -> None: ...


class BrokerTarget:
    """A broker, reached over the port of the namespace, or over its control socket, which answers during
    every fault."""

    pace_s = 1.0
    can_switch = True
    operations = 0

    def __init__(
        self,
        name: str,
        side: Side,
        connection_string: str,
        *,
        role: str | None = None,
        control: Path | None = None,
        ca_file: Path | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self.address = side.name
        self._side = side
        self._connection = ConnectionString.parse(connection_string)
        self._control = control / SOCKET_NAME if control is not None and control.is_dir() else control
        self._ca_file = ca_file
        self._authority = f"{in_url(self._connection.host)}:{self._connection.port or DEFAULT_PORT}"
        self._session: aiohttp.ClientSession | None = None

    async def side(self) -> Side:
        return self._side

    async def overview(self) -> dict[str, Any]:
        overview = await self._ask("GET", "overview", None, ANSWER_S)
        if not isinstance(overview, dict) or "entities" not in overview:
            raise PairbusError(f"{self.name} does not answer as a broker of this version does")
        return overview

    async def switch(self, method: str, route: str, body: dict[str, Any] | None) -> Any:
        return await self._ask(method, route, body, CHANGE_S)

    async def changes(self) -> AsyncGenerator[None, None]:
        try:
            session = await self._opened()
            silence = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_S, sock_read=SILENT_S)
            url = f"{self._base()}/$pairbus/changes"
            async with session.get(url, headers=self._headers(), timeout=silence) as answer:
                if answer.status != 200:
                    raise PairbusError(f"{self.name} does not tell its changes")
                async for line in answer.content:
                    if line == b"changed\n":
                        yield
        except (aiohttp.ClientError, OSError) as error:
            raise PairbusError(f"{self.name} cannot be followed: {error}") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, method: str, route: str, body: dict[str, Any] | None, wait_s: float) -> Any:
        place = str(self._control or self._authority)
        try:
            async with asyncio.timeout(wait_s):
                session = await self._opened()
                url = f"{self._base()}/$pairbus/{route}"
                async with session.request(method, url, json=body, headers=self._headers()) as answer:
                    data = await answer.content.read(ANSWER_SIZE_MAX)
                    return _read(answer.status, data, place)
        except TimeoutError:
            raise PairbusError(f"{place} gave no answer within {wait_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
            raise PairbusError(f"{place} cannot be reached: {reason}") from None

    async def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector: aiohttp.BaseConnector
            if self._control is not None:
                connector = aiohttp.UnixConnector(str(self._control))
            else:
                connector = aiohttp.TCPConnector(ssl=await in_thread("pairbus-ca", self._trust))
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    def _trust(self) -> ssl.SSLContext:
        if self._ca_file is not None:
            return ssl.create_default_context(cafile=self._ca_file)
        if not is_loopback(self._connection.host):
            raise ConfigError(
                f"{self._connection.host} is not this machine: copy the broker's ca.pem, give it by --ca-file"
            )
        return ssl.create_default_context(cadata=fetch_ca(self._authority, ANSWER_S).decode("ascii"))

    def _base(self) -> str:
        return f"http://localhost/{self.name}" if self._control is not None else f"https://{self._authority}"

    def _headers(self) -> dict[str, str]:
        connection = self._connection
        if self._control is not None:
            return {}
        if connection.key_name is None or connection.key is None:
            return {"Authorization": connection.signature or ""}
        expires_s = int(time.time()) + TOKEN_S
        return {"Authorization": sign(f"https://{self._authority}", connection.key_name, connection.key, expires_s)}


class AzureTarget:
    """A namespace of Azure, or of any other emulator: its administration lists entities and counts."""

    can_switch = False

    def __init__(self, name: str, side: Side, *, role: str | None = None, pace_s: float = 15.0) -> None:
        self.name = name
        self.role = role
        self.address = side.name
        self.pace_s = pace_s
        self.operations = 0
        self._side = side
        self._admin: ServiceBusAdministrationClient | None = None

    async def side(self) -> Side:
        return self._side

    async def overview(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(ADMIN_S):
                return {"name": self.name, "entities": await in_thread("pairbus-admin", self._listed)}
        except TimeoutError:
            raise PairbusError(f"{self.name} gave no answer within {ADMIN_S:g} s") from None
        except (AzureError, OSError) as error:
            raise PairbusError(f"{self.name}: {str(error).splitlines()[0] if str(error) else error!r}") from None

    async def switch(self, method: str, route: str, body: dict[str, Any] | None) -> Any:
        raise ConfigError(f"{self.name} is no broker of Pairbus: it has no {route} to switch")

    async def changes(self) -> AsyncGenerator[None, None]:
        raise ConfigError(f"{self.name} is no broker of Pairbus: it does not tell its changes")
        yield

    async def close(self) -> None:
        if self._admin is not None:
            await in_thread("pairbus-admin", self._admin.close)

    def _listed(self) -> dict[str, Any]:
        if self._admin is None:
            admin = self._side.new_admin()
            assert isinstance(admin, ServiceBusAdministrationClient)
            self._admin = admin
        admin, entities, queues = self._admin, {}, 0
        settings: dict[str, Any] = {queue.name: queue for queue in admin.list_queues()}
        for queue in admin.list_queues_runtime_properties():
            queues += 1
            queue_settings = settings.get(queue.name)
            entities[queue.name] = _counts("queue", queue, queue_settings) | {
                "scheduled": queue.scheduled_message_count or 0
            }
        self.operations += 2 * _pages(queues)
        topics = 0
        of_topics: dict[str, Any] = {topic.name: topic for topic in admin.list_topics()}
        for topic in admin.list_topics_runtime_properties():
            topics += 1
            entities[topic.name] = {
                "kind": "topic",
                "scheduled": topic.scheduled_message_count or 0,
                "size_bytes": topic.size_in_bytes or 0,
                "subscriptions": topic.subscription_count or 0,
                **_settings(of_topics.get(topic.name)),
            }
            settings = {each.name: each for each in admin.list_subscriptions(topic.name)}
            for each in admin.list_subscriptions_runtime_properties(topic.name):
                entities[f"{topic.name}/Subscriptions/{each.name}"] = _counts(
                    "subscription", each, settings.get(each.name)
                )
            self.operations += 2 * _pages(len(settings))
        self.operations += 2 * _pages(topics)
        return entities


def _pages(count: int) -> int:
    """Return the calls for a listing: full pages, and one that is not full."""
    return count // PAGE_SIZE + 1


def _counts(kind: str, counts: Any, settings: Any) -> dict[str, Any]:
    counted = {
        "kind": kind,
        "active": counts.active_message_count or 0,
        "dead": counts.dead_letter_message_count or 0,
        "size_bytes": getattr(counts, "size_in_bytes", 0) or 0,
    }
    if counts.transfer_message_count:
        counted["transfer"] = counts.transfer_message_count
    if counts.transfer_dead_letter_message_count:
        counted["transfer_dead"] = counts.transfer_dead_letter_message_count
    if settings is not None:
        counted |= {"sessions": bool(settings.requires_session), **_settings(settings)}
        if settings.forward_to:
            counted["forward_to"] = settings.forward_to.rpartition("/")[2]
    return counted


def _settings(settings: Any) -> dict[str, Any]:
    """Return the settings that all kinds of entities have; empty when they were not listed: `status` tells that."""
    if settings is None:
        return {}
    fields: dict[str, Any] = {"status": str(settings.status)}
    size_mb = getattr(settings, "max_size_in_megabytes", None)
    if size_mb:
        fields["max_bytes"] = size_mb << 20
    if getattr(settings, "requires_duplicate_detection", False):
        window = settings.duplicate_detection_history_time_window
        fields["duplicate_window_s"] = WINDOW_MAX_S if window is None else window.total_seconds()
    return fields


def _read(status: int, data: bytes, place: str) -> Any:
    try:
        reply = json.loads(data)
    except ValueError:
        reply = {"error": f"status {status}: {data[:200].decode('utf-8', 'replace')}"}
    if status < 300:
        return reply
    reason = reply.get("error") if isinstance(reply, dict) else reply
    kind = FaultNotFound if status == 404 and "fault" in str(reason) else _STATUSES.get(status, PairbusError)
    raise kind(f"refused by {place}: {reason}")
