"""An endpoint that answers with any condition at any step: what no real broker can be asked to do.

    async with ScriptedEndpoint() as endpoint:
        endpoint.on("transfer", Reject("com.microsoft:server-busy"), path="orders", times=3)
        client = ServiceBusClient.from_connection_string(endpoint.connection_string)
        …
        assert endpoint.stored("orders") == …

It speaks plain AMQP on loopback, takes every token, has every path (queues, topics, subscriptions, sessions), and keeps
what it accepts in memory, handing it to receivers of the same path in order. Rules and actions are in `script`.
Switches may be thrown from any thread, and have taken effect when they return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pairbus.amqp.errors import CONNECTION_FORCED, DETACH_FORCED
from pairbus.amqp.performatives import Error
from pairbus.proxy.conversation import path_of
from pairbus.proxy.port import HOST
from pairbus.testing.threads import InThread, OnLoop, switch
from tests.scripted import script
from tests.scripted.mailbox import Mailbox, Received
from tests.scripted.peer import ScriptedPeer
from tests.scripted.script import Action, Occasion, Rule, Script, StepName

MAX_MESSAGE_SIZE = 256 << 10

_ENDS = (script.Close, script.Silent, script.Reset, script.HangUp, script.Delay, script.Accept, script.Reject)
MEANINGS: dict[StepName, tuple[type[Action], ...]] = {
    "connect": (script.Silent, script.Reset, script.HangUp, script.Delay, script.Accept, script.Reject),
    "sasl": (script.Silent, script.Reset, script.HangUp, script.Delay, script.Accept, script.Reject),
    "open": _ENDS,
    "begin": _ENDS,
    "token": (*_ENDS, script.Detach),
    "attach": (*_ENDS, script.Detach, script.LoseAnswer),
    "transfer": (*_ENDS, script.Detach, script.LoseAnswer, script.Answer),
    "request": (*_ENDS, script.Detach, script.LoseAnswer, script.Reply),
    "settlement": (*_ENDS, script.Detach, script.LoseAnswer, script.Answer),
}
"Actions that each step knows; any other is a mistake of the test."


class ScriptedEndpoint(OnLoop):
    """A namespace of one's own making on a port of the loopback."""

    def __init__(self, *, hides_pings: bool = True, max_message_size: int = MAX_MESSAGE_SIZE) -> None:
        super().__init__()
        self.hides_pings = hides_pings
        "Announced in the open; pings are then accepted and kept from receivers, otherwise they are messages as any."
        self.max_message_size = max_message_size
        self.max_message_sizes: dict[str, int] = {}
        "Paths in lower case that have a limit of their own."
        self.port = 0
        self.mailbox = Mailbox()
        self.tokens: list[tuple[str, Any, Any]] = []
        "(audience, type, token)"
        self.requests: list[tuple[str, str, Any]] = []
        "(entity, operation, body)"
        self.settlements: list[tuple[str, str]] = []
        "(path, outcome): accepted, released, modified, rejected."
        self.steps: list[Occasion] = []
        "Steps of all clients, in order."
        self.peers: list[ScriptedPeer] = []
        self._script = Script()
        self._server: asyncio.Server | None = None
        self._connections = 0

    def __repr__(self) -> str:
        return f"<ScriptedEndpoint {self.port} rules={len(self._script.rules)} connections={len(self.peers)}>"

    async def start(self, port: int = 0) -> None:
        await super().start(port)
        self._server = await asyncio.get_running_loop().create_server(self._new_peer, HOST, port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the port and reset connections. Received messages stay; `start` may follow."""
        if self._server is not None:
            self._server.close()
            self.reset()
            await self._server.wait_closed()
            self._server = None
        await super().stop()

    @property
    def connection_string(self) -> str:
        """Connection string like that of the official emulator: plain AMQP."""
        return (
            f"Endpoint=sb://{HOST}:{self.port};SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
        )

    # ── the script ──

    @switch
    def on(
        self,
        step: StepName,
        action: Action,
        *,
        path: str | None = None,
        times: int | None = None,
        when: Callable[[Occasion], bool] | None = None,
    ) -> Rule:
        """Add a rule behind those that are there; `rule.hits` tells how often it applied."""
        inner = action
        while True:
            if not isinstance(inner, MEANINGS[step]):
                raise ValueError(f"{step}: {type(inner).__name__} means nothing there")
            if not isinstance(inner, script.Delay | script.LoseAnswer):
                break
            if isinstance(inner, script.LoseAnswer) and isinstance(inner.then, script.Accept):
                raise ValueError(f"{step}: an answer that is lost cannot be given afterwards")
            inner = inner.then
        rule = Rule(step, action, path, times, when)
        self._script.rules.append(rule)
        return rule

    @switch
    def remove(self, rule: Rule) -> None:
        self._script.rules.remove(rule)

    @switch
    def heal(self) -> None:
        """Remove all rules: from now on all steps are accepted. Steps without an answer stay unanswered."""
        self._script.rules.clear()

    def decide(self, occasion: Occasion) -> Action:
        self.steps.append(occasion)
        return self._script.action(occasion)

    # ── out of the blue ──

    @switch
    def close_idle_links(
        self,
        path: str | None = None,
        condition: str = DETACH_FORCED,
        description: str = "The link was closed because it was idle for 10 minutes.",
    ) -> int:
        """Detach every link to entities (to one of them), as the service does to idle ones; how many there were."""
        count = 0
        for peer in list(self.peers):
            for link in peer.links(None if path is None else path_of(path)):
                link.detach(Error(condition, description))
                count += 1
            peer.flush()
        return count

    @switch
    def close_connections(
        self, condition: str = CONNECTION_FORCED, description: str = "The connection was inactive for too long."
    ) -> None:
        """Close every connection with a condition, as the service does to idle ones and before maintenance."""
        for peer in list(self.peers):
            peer.close(condition, description)

    @switch
    def reset(self) -> None:
        """RST for every connection."""
        for peer in list(self.peers):
            peer.reset()

    @switch
    def put(self, path: str, *messages: bytes) -> None:
        """Encoded messages for receivers, as if they had been sent."""
        self.mailbox.store(path, messages)
        self.pump()

    # ── what reached it ──

    @property
    def received(self) -> list[Received]:
        """Every transfer to an entity, with any answer; see `Received.stored`."""
        return list(self.mailbox.received)

    def received_by(self, path: str) -> list[Received]:
        return [each for each in self.mailbox.received if each.path == path_of(path)]

    def stored(self, path: str) -> list[bytes]:
        """The encoded messages that were accepted for the path, batches taken apart, pings left out if hidden."""
        return self.mailbox.stored(path)

    def scheduled(self, path: str) -> list[bytes]:
        return self.mailbox.scheduled(path)

    @property
    def open_connections(self) -> int:
        return len(self.peers)

    def link_count(self, path: str) -> int:
        """Links that are attached to the path now."""
        return sum(len(peer.links(path_of(path))) for peer in self.peers)

    # ── for its connections ──

    def size_limit(self, path: str) -> int:
        return self.max_message_sizes.get(path, self.max_message_size)

    def pump(self) -> None:
        for peer in list(self.peers):
            peer.pump()

    def _new_peer(self) -> ScriptedPeer:
        self._connections += 1
        return ScriptedPeer(self, self._connections)


class ScriptedThread(InThread, ScriptedEndpoint):
    """A scripted endpoint for tests that block: `with ScriptedThread() as endpoint:`."""
