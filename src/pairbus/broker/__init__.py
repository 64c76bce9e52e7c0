"""The embedded broker: one or more durable Service Bus namespaces in this process.

async with Broker([NamespaceOptions("contoso")], data=Path("bus")) as broker:
    client = ServiceBusClient.from_connection_string(broker.connection_string("contoso"))
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from aiohttp import web

from pairbus.amqp.connection import Trace
from pairbus.auth import emulator
from pairbus.auth.hosts import in_url, is_loopback
from pairbus.auth.sas import KeyRing, SharedAccessKey
from pairbus.broker.admin.app import TOKEN_SKEW_S, admin_app
from pairbus.broker.admin.metrics_access import MetricsPage
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.config.creation import create_entities
from pairbus.broker.config.entity_settings import SubscriptionConfig
from pairbus.broker.config.file import load_config
from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.kit.clock import machine_steady_ms, wall_ms
from pairbus.broker.kit.control import SOCKET_NAME, SOCKET_ROUTES, ControlSocket
from pairbus.broker.kit.port import control_of
from pairbus.broker.kit.recorder import Recorder
from pairbus.broker.machine_memory import MemoryReturn, usable_bytes
from pairbus.broker.monitoring.meter import NamespaceMeter
from pairbus.broker.monitoring.metrics import namespace_families
from pairbus.broker.namespace import Namespace
from pairbus.broker.rest.routes import MessageRoutes
from pairbus.broker.store import Store
from pairbus.broker.store.folder import is_data_file
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.broker.strict import LENIENT, LIKE_AZURE, Strictness
from pairbus.broker.wire.certificate import ca_path, server_context
from pairbus.broker.wire.server import Port
from pairbus.errors import ConfigError
from pairbus.host.folders import make_folder, tighten_folder
from pairbus.ledger import Ledger
from pairbus.ledger.room import SUFFIX

__all__ = [
    "Broker",
    "NamespaceOptions",
    "QueueDescription",
    "Strictness",
    "SubscriptionConfig",
    "SubscriptionDescription",
    "TopicDescription",
    "load_config",
]

logger = logging.getLogger("pairbus.broker")

ROOT_KEY_NAME = "RootManageSharedAccessKey"
WELL_KNOWN_KEY = emulator.WELL_KNOWN_KEY
LEDGER_CLOSE_S = 2.0  # time that stopping grants the last rows of the meter


@dataclass(frozen=True, slots=True)
class NamespaceOptions:
    """One namespace to be served."""

    name: str
    port: int = 0
    "Port number; 0: any free one."
    queues: tuple[QueueDescription, ...] = ()
    "Queues to create at start when they are missing; entities that exist are left as they are."
    keys: tuple[SharedAccessKey, ...] = ()
    "Keys besides the root key, which is the broker's `key` unless one of that name is here."
    topics: tuple[TopicDescription, ...] = ()
    "Topics to create at start, like the queues."
    subscriptions: tuple[SubscriptionConfig, ...] = ()
    "Subscriptions to create at start, like the queues, with their first rules."
    extra_ports: tuple[int, ...] = ()
    "Further ports of the same namespace, where some clients look for it: 5300, 443. 0: any free one."
    is_updated: bool = False
    "True when the settings above are given to entities that exist; False: these are left as they are."
    operations_per_s: float | None = None
    "Operations beyond this rate are refused as server-busy; None: no limit."


class BrokerPage(Protocol):
    """The page of one namespace, on its port."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request of a browser."""
        ...

    async def close(self) -> None: ...


MakePage = Callable[[Namespace, Callable[[], str], str, frozenset[str]], BrokerPage]
"(namespace, its connection string, address of the broker, names under which it is called) → its page."


class Broker:
    """Broker of the namespaces of one machine. `data=None` keeps all messages in memory; `meter` is the folder of the
    ledger.

    `strict`: behave on the wire as Azure does, in every respect or in those of a `Strictness`. `record_sends`: keep the
    last messages that were accepted, for assertions of tests. `emulator`: stand in the place of Microsoft's emulator,
    which has a well-known key on every address and is called by the names of containers. `page` makes the page of each
    namespace for browsers, as `pairbus.dashboard.lazy.lazy_page` does; None: there is no page. `now_ms` and `steady_ms`
    replace the machine's clocks; `now_ms` alone is taken for a clock that nobody sets.
    """

    def __init__(  # noqa: PLR0913 - the settings of a broker
        self,
        namespaces: Sequence[NamespaceOptions],
        *,
        data: Path | None,
        host: str = "127.0.0.1",
        key: str | None = None,
        allowed_hosts: Sequence[str] = (),
        meter: Path | None = None,
        progress: Callable[[str], None] | None = None,
        trace: Trace | None = None,
        strict: bool | Strictness = False,
        record_sends: bool = False,
        page: MakePage | None = None,
        emulator: bool = False,
        now_ms: Callable[[], int] | None = None,
        steady_ms: Callable[[], int] | None = None,
    ) -> None:
        if not namespaces:
            raise ConfigError("at least one namespace is needed")
        names = [options.name.lower() for options in namespaces]
        if len(set(names)) != len(names):
            raise ConfigError(f"two namespaces have one name: {', '.join(names)}")
        self._options = list(namespaces)
        self._data = data
        self._host = host
        self._hosts = tuple(allowed_hosts)
        "Further names under which clients call this broker: in its certificate, and accepted in HTTP's Host."
        self._key = WELL_KNOWN_KEY if key is None else key
        self._is_emulator = emulator
        self._check_keys(namespaces)
        self._progress = progress
        self._trace = trace
        if isinstance(strict, bool):
            strict = LIKE_AZURE if strict else LENIENT
        self._strictness = strict
        self._record_sends = record_sends
        self._make_page = page
        self._budget = MemoryBudget(usable_bytes() // 2)
        self._memory_return: MemoryReturn | None = None
        self._pages: dict[str, BrokerPage] = {}
        if now_ms is None:
            now_ms, steady_ms = wall_ms, machine_steady_ms
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._meter = meter
        self._ledger: Ledger | None = None
        self._namespaces: dict[str, Namespace] = {}
        self._ports: dict[str, Port] = {}
        self._control: ControlSocket | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._tls: ssl.SSLContext | None = None
        "TLS context of the port while the broker is served."

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def ca_file(self) -> Path:
        return ca_path(self._folder())

    @property
    def control_socket(self) -> Path | None:
        """The Unix socket with the switches of every namespace (see `control`); None: it could not be opened."""
        return None if self._control is None else self._control.path

    def names(self) -> list[str]:
        """Return the names of the namespaces, as they were given."""
        return [options.name for options in self._options]

    def connection_string(self, name: str) -> str:
        port = self._ports[name.lower()]
        options = next(options for options in self._options if options.name.lower() == name.lower())
        key = next(key.key for key in [*self._root_key(options), *options.keys] if key.name == ROOT_KEY_NAME)
        return (
            f"Endpoint=sb://{in_url(self._host)}:{port.number};SharedAccessKeyName={ROOT_KEY_NAME};"
            f"SharedAccessKey={key};UseDevelopmentEmulator=true"
        )

    def extra_ports(self, name: str) -> list[int]:
        """Return the further ports of a namespace, as they were taken."""
        return list(self._ports[name.lower()].extra_numbers)

    def namespace(self, name: str) -> Namespace:
        """Return a namespace while it is served: its queues and their counts, without a round trip over the wire."""
        return self._namespaces[name.lower()]

    async def start(self) -> None:
        """Recover every namespace, then listen. When one namespace cannot be served, none is."""
        loop = asyncio.get_running_loop()
        self._memory_return = MemoryReturn(loop)
        self._memory_return.start()
        if self._meter is not None:
            if self._meter.is_dir():
                tighten_folder(self._meter, lambda path: path.suffix == SUFFIX)
            self._ledger = Ledger(self._meter, client="broker", clock=lambda: self._now_ms() / 1000)
        try:
            for options in self._options:
                self._recover(options, loop)
            if self._data is not None:
                tighten_folder(self._data, is_data_file)
            # Behind the stores' locks: two brokers on one folder must not make certificates for each other.
            names = [options.name for options in self._options]
            self._tls = server_context(self._folder(), [self._host, *self._hosts, *names])
            for options in self._options:
                await self._listen(options, self._tls, loop)
            control = ControlSocket(self._folder() / SOCKET_NAME, self._namespaces, SOCKET_ROUTES)
            if control.open():
                self._control = control
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop accepting, finish commits, tell the clients, close the stores."""
        if self._memory_return is not None:
            self._memory_return.stop()
        for namespace in self._namespaces.values():
            namespace.changes.close()  # before the sockets: an open stream would keep them from closing
        control, self._control = self._control, None
        if control is not None:
            await control.close()
        pages, self._pages = self._pages, {}
        for page in pages.values():
            await page.close()
        namespaces, ports = list(self._namespaces.values()), list(self._ports.values())
        self._namespaces.clear()
        self._ports.clear()
        self._tls = None
        await _close(namespaces, ports)
        if self._ledger is not None:
            await asyncio.to_thread(self._ledger.close, LEDGER_CLOSE_S)
            self._ledger = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    async def add_namespace(self, options: NamespaceOptions) -> Namespace:
        """Serve one more namespace while the broker runs. ConfigError: the name is taken, or serving failed.

        The certificate stays as it is: over TLS the new namespace is known by loopback names and allowed hosts.
        """
        loop = asyncio.get_running_loop()
        if self._tls is None:
            raise ConfigError("the broker is not running: start it, then add namespaces")
        if any(known.name.lower() == options.name.lower() for known in self._options):
            raise ConfigError(f"there is a namespace {options.name!r} already")
        self._check_keys([options])
        self._options.append(options)
        try:
            self._recover(options, loop)
            await self._listen(options, self._tls, loop)
        except BaseException:
            await self.remove_namespace(options.name)
            raise
        return self.namespace(options.name)

    async def remove_namespace(self, name: str, *, at_once: bool = False) -> None:
        """Stop serving a namespace; its stored messages stay on disk. `at_once`: do not wait for its clients to leave.

        ConfigError: there is no such namespace.
        """
        kept = [options for options in self._options if options.name.lower() != name.lower()]
        if len(kept) == len(self._options):
            known = ", ".join(options.name for options in self._options)
            raise ConfigError(f"there is no namespace {name!r}; there are: {known}")
        self._options = kept
        page = self._pages.pop(name.lower(), None)
        if page is not None:
            await page.close()
        namespace, port = self._namespaces.pop(name.lower(), None), self._ports.pop(name.lower(), None)
        await _close([] if namespace is None else [namespace], [] if port is None else [port], at_once=at_once)

    def _check_keys(self, namespaces: Sequence[NamespaceOptions]) -> None:
        keys = [key for options in namespaces for key in [*self._root_key(options), *options.keys]]
        is_open = not is_loopback(self._host) and any(WELL_KNOWN_KEY in (key.key, key.secondary_key) for key in keys)
        if is_open and not self._is_emulator:
            raise ConfigError(f"listening on {self._host} needs a key of your own: --key or PAIRBUS_KEY")

    def _recover(self, options: NamespaceOptions, loop: asyncio.AbstractEventLoop) -> None:
        keys = KeyRing([*self._root_key(options), *options.keys])
        store = self._store(options.name, loop)
        namespace = Namespace(
            options.name,
            store,
            keys,
            loop=loop,
            now_ms=self._now_ms,
            steady_ms=self._steady_ms,
            meter=NamespaceMeter(self._ledger, options.name),
            strictness=self._strictness,
            operations_per_s=options.operations_per_s,
            recorder=Recorder() if self._record_sends else None,
            budget=self._budget,
        )
        self._namespaces[options.name.lower()] = namespace  # before it can fail: `stop` then releases its store
        for sentence in namespace.recover():
            logger.error("%s: %s", options.name, sentence)

    async def _listen(self, options: NamespaceOptions, tls: ssl.SSLContext, loop: asyncio.AbstractEventLoop) -> None:
        namespace = self._namespaces[options.name.lower()]
        await create_entities(
            namespace, options.topics, options.queues, options.subscriptions, is_updated=options.is_updated
        )
        port = Port(namespace, loop=loop, tls=tls, trace=self._trace)
        hosts = frozenset({options.name, self._host, *self._hosts})
        page = None
        if self._make_page is not None:
            page = self._make_page(namespace, lambda: self.connection_string(options.name), self._host, hosts)
            self._pages[options.name.lower()] = page
        app = admin_app(
            namespace,
            hosts=hosts,
            is_emulator=self._is_emulator,
            page=None if page is None else page.handle,
            ca_pem=self.ca_file.read_bytes(),
            websocket=port.web_socket,
            on_request=port.on_request,
            meter=namespace.meter,
            faults=namespace.faults,
            control=control_of(namespace),
            messages=MessageRoutes(namespace, skew_s=TOKEN_SKEW_S),
            metrics=MetricsPage(
                lambda: namespace_families(namespace, port.connections(), port.opened_count), is_loopback(self._host)
            ),
        )
        await port.open(self._host, options.port, app, options.extra_ports)
        self._ports[options.name.lower()] = port

    def _root_key(self, options: NamespaceOptions) -> list[SharedAccessKey]:
        """Return the broker's own key, unless the namespace brings one of that name."""
        brings_one = any(key.name == ROOT_KEY_NAME for key in options.keys)
        return [] if brings_one else [SharedAccessKey(ROOT_KEY_NAME, self._key)]

    def _store(self, name: str, loop: asyncio.AbstractEventLoop) -> Store:
        if self._data is None:
            return MemoryStore(loop.call_soon)
        return SqliteStore(self._data / name, loop=loop, progress=self._progress)

    def _folder(self) -> Path:
        if self._data is not None:
            make_folder(self._data)
            return self._data
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="pairbus-")
        return Path(self._scratch.name)


async def _close(namespaces: Sequence[Namespace], ports: Sequence[Port], *, at_once: bool = False) -> None:
    """Stop accepting, finish commits, tell the clients, close the stores."""
    for port in ports:
        await port.stop_accepting()
    for namespace in namespaces:
        await namespace.close()
    for port in ports:
        await port.close(at_once=at_once)
