"""The one pool of connections of a process, and its event loop. Source, sink and syphon borrow connections from it.

    def task() -> int:
        return run(work())                                      # the only way from a task to the event loop

    async def work() -> int:
        async with Borrowed(secret, ca_file) as carrier: ...    # the process's connection to that namespace

A worker of Spark lives longer than its tasks, so a connection is kept from one task to the next, and closed when
nobody has used it for a minute. The event loop runs in a thread of its own, once in a process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from pairbus.auth.connection_string import host_and_port
from pairbus.auth.secret_place import is_secret_place, read_secret_of_host
from pairbus.errors import ConfigError
from pairbus.host.forks import call_in_forked_child
from pairbus.transport import Carrier, Endpoint
from pairbus.transport.connection.endpoint import TransportKind
from pairbus.transport.loops import new_event_loop
from pairbus.transport.times import TIMEOUT_S
from pairbus.transport.tokens.named_credential import is_credential_name, made_credential

IDLE_S = 60.0
LOOK_S = 10.0

T = TypeVar("T")
_Key = tuple[Endpoint, str | None, str | None, float]
"(namespace, credential, trusted CA file, time-out) of a connection."


@dataclass(frozen=True, slots=True)
class Secret:
    """Says where the secret of a namespace is. Spark shows options in plans, logs and pages, so only the place is in
    them.

    The secret is read where a connection is made: on the driver, which fails early, and in each worker. So the variable
    or file must be there on every host.
    """

    source: str
    "`env:NAME` or `@FILE`, the place of a connection string; with a credential, the host of the namespace."
    option: str = "connectionString"
    "Name of the option in errors."
    credential: str | None = None
    "`default`, or `MODULE:CALLABLE`, which makes a token credential."

    @classmethod
    def parse(cls, text: str, option: str, credential: str | None = None) -> Secret:
        """Check only the form of the text. ConfigError never shows a text that may be a connection string."""
        if credential is not None:
            if "=" in text or text.startswith(("env:", "@")):
                raise ConfigError(f"{option}: with a credential, give the host of the namespace and no secret")
            try:
                host_and_port(text, option)
            except ConfigError:
                raise ConfigError(f"{option}: {text!r} is not the host of a namespace") from None
            if not is_credential_name(credential):
                raise ConfigError(
                    f"{option}: the credential must be 'default' or 'MODULE:CALLABLE', not {credential!r}"
                )
            return cls(text, option, credential)
        if is_secret_place(text):
            return cls(text, option)
        raise ConfigError(
            f"{option}: Spark shows options in its plans and pages, so give the place of the connection string and not"
            " the string itself: 'env:NAME' for an environment variable, '@FILE' for a file"
        )

    def __str__(self) -> str:
        if self.credential is None:
            return f"the connection string in {self.source}"
        return f"the token of credential {self.credential} for {self.source}"

    def read(self) -> str:
        """Return the connection string. ConfigError names the option, the place and the host, never the secret."""
        return read_secret_of_host(self.source, self.option, "no connection string")

    def endpoint(self, transport: TransportKind = "tcp") -> Endpoint:
        """Return the address of the namespace, and the key if there is one."""
        if self.credential is not None:
            host, port = host_and_port(self.source, self.option)
            return Endpoint(host, port or (443 if transport == "websocket" else 5671), transport=transport)
        text = self.read()
        try:
            return Endpoint.parse(text, transport=transport)
        except ConfigError as error:
            raise ConfigError(f"{self.option}: {error}") from None

    def token_credential(self) -> object | None:
        """Return the credential that gives tokens, made once in a process; None when there is a key."""
        if self.credential is None:
            return None
        try:
            return made_credential(self.credential)
        except ConfigError as error:
            raise ConfigError(f"{self.option}: {error}") from None


@dataclass(slots=True)
class _Pooled:
    """A carrier of the pool."""

    carrier: Carrier
    borrowers: int = 0
    used_at: float = 0.0
    "Time of the event loop at which it was last given back."


class _Loop:
    """The event loop of this process, and the pool of carriers on it."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.pool: dict[_Key, _Pooled] = {}
        self._endings: set[asyncio.Task[None]] = set()
        threading.Thread(target=self._run, name="pairbus connections", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_later(LOOK_S, self._look)
        self.loop.run_forever()

    def _look(self) -> None:
        self.close_idle(self.loop.time())
        self.loop.call_later(LOOK_S, self._look)

    def close_idle(self, now: float) -> None:
        for key, pooled in list(self.pool.items()):
            if not pooled.borrowers and now - pooled.used_at > IDLE_S:
                del self.pool[key]
                ending = self.loop.create_task(pooled.carrier.close())
                self._endings.add(ending)
                ending.add_done_callback(self._endings.discard)


_own: _Loop | None = None
_lock = threading.Lock()


def _loop() -> _Loop:
    global _own  # noqa: PLW0603
    with _lock:
        if _own is None:
            _own = _Loop()
        return _own


def _forget() -> None:
    """Forget the loop in the child of a fork: its thread is not there, and the sockets belong to the parent."""
    global _own, _lock
    _own, _lock = None, threading.Lock()


call_in_forked_child(_forget)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on this process's event loop, and wait for its result. An interrupted caller cancels it."""
    running = asyncio.run_coroutine_threadsafe(work, _loop().loop)
    try:
        return running.result()
    finally:
        running.cancel()  # has no effect on a coroutine that has ended


class Borrowed:
    """The process's connection to a namespace, for use within `run`. The secret is read here: keys may change."""

    def __init__(
        self,
        secret: Secret,
        ca_file: str | None,
        *,
        transport: TransportKind = "tcp",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._key: _Key = (secret.endpoint(transport), secret.credential, ca_file, timeout_s)
        self._secret = secret

    def new_carrier(self) -> Carrier:
        endpoint, _, ca_file, timeout_s = self._key
        return Carrier(endpoint, credential=self._secret.token_credential(), ssl=ca_file, timeout_s=timeout_s)

    async def __aenter__(self) -> Carrier:
        pool = _loop().pool
        if self._key not in pool:
            pool[self._key] = _Pooled(self.new_carrier())
        pool[self._key].borrowers += 1
        return pool[self._key].carrier

    async def __aexit__(self, *_: object) -> None:
        own = _loop()
        pooled = own.pool[self._key]
        pooled.borrowers -= 1
        pooled.used_at = own.loop.time()
