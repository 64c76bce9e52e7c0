"""The control socket of a client: its entities, its syphon, and the operator's commands."""

from __future__ import annotations

import logging
import os
import time
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.errors import ConfigError, EntityNotFound, PairbusError
from pairbus.host.control.followers import Followers
from pairbus.host.control.serving import ControlServer, Routes, by_routes, call_in, open_server, program
from pairbus.host.environment import WORDS, read_switch
from pairbus.pairing.failover import SendingEntity
from pairbus.syphon.control import LOOK_S, Look, SyphonFacts

if TYPE_CHECKING:
    from pairbus.client.state import PairState

logger = logging.getLogger("pairbus.control")

VARIABLE = "PAIRBUS_CONTROL_SOCKET"
NAMES_SHOWN = 10

NOT_AT_WORK = "this client has no running event loop: it begins with its first call, and can be forced from then on"
CHILD = (
    "%s is served by the parent of this process, which was forked: its own client has no control socket. With"
    " control_socket=True each process has one"
)


class ClientControl:
    """The control socket of one client; does nothing when no socket was asked for.

    This object and its thread do not keep a client alive that was forgotten: they hold weak references only, and the
    socket is removed together with the memory of the client (`PairState`).
    """

    def __init__(self, state: PairState, wanted: bool | str | os.PathLike[str] | None) -> None:
        """Open the socket, if wanted. Failure: ConfigError if the option wants it, a warning if the variable does."""
        self._state = weakref.ref(state)
        self._path = None if wanted is None or isinstance(wanted, bool) else Path(wanted)
        self._loop: Callable[[], AbstractEventLoop | None] = _nothing
        self._syphon: Callable[[], Look | None] = _nothing
        self._facts = SyphonFacts()
        self._server: ControlServer | None = None
        if wanted is None and _is_switched_on():
            self._try_to_open()
        elif wanted is not None and wanted is not False:
            self._open()

    def serve(self, loop: AbstractEventLoop) -> None:
        """Name the event loop in which the client works from now on. A forked child opens a socket of its own here."""
        self._loop, self._syphon = weakref.ref(loop), _nothing
        if self._server is None or self._server.is_of_this_process:
            return
        self._server = None
        if self._path is None:
            self._try_to_open()
        else:
            logger.warning(CHILD, self._path)

    def watch(self, progress: Look) -> None:
        """Name the method that tells the progress of the client's own syphon, which begins to run."""
        self._syphon = weakref.WeakMethod(progress)

    def close(self) -> None:
        if self._server is not None:
            self._server.close(wait=True)

    def _open(self) -> None:
        state = self._state()
        assert state is not None
        self._facts.tick(_moved(state))
        followers = Followers()
        self._server = open_server("client", self._path, by_routes(self._routes(followers)), self._tick, followers)
        state.events.tell_followers = followers.tell
        weakref.finalize(state, self._server.close)

    def _try_to_open(self) -> None:
        try:
            self._open()
        except ConfigError as error:
            logger.warning("%s", error)

    def _routes(self, followers: Followers) -> Routes:
        return {
            ("GET", "/"): self._describe,
            ("GET", "/events"): lambda _: followers.with_room(),
            ("POST", "/force-failover"): lambda body: self._force(body, over=True),
            ("POST", "/force-healthy"): lambda body: self._force(body, over=False),
        }

    def _living(self) -> PairState:
        state = self._state()
        if state is None:
            raise PairbusError("this client is gone")
        return state

    def _tick(self) -> None:
        state = self._state()
        if state is not None:
            self._facts.tick(_moved(state))

    # ── looking ──

    def _describe(self, _: dict[str, Any]) -> dict[str, Any]:
        state = self._living()
        counts, now = state.counters.snapshot(), time.monotonic()
        return {
            "role": "client",
            "pid": os.getpid(),
            "program": program(),
            "primary": state.primary.name,
            "secondary": state.secondary_name,
            "primary_name": state.primary_name,
            "paired": state.is_paired and state.pair.enabled,
            "ended": state.ended,
            "entities": [_entity(each, counts["entities"].get(each.path, {}), now) for each in state.pair.entities()],
            "spool_depth": counts["spool_depth"],
            "queues": len(state.pair.rotation.queues),
            "out_of_rotation": counts["out_of_rotation"],
            "syphon": self._syphon_facts(_moved(state)),
            "processor_counts": counts["processors"],
            "processors": [look() for look in list(state.processors)],
            "receivers": state.receivers(),
        }

    def _syphon_facts(self, moved: int) -> dict[str, Any] | None:
        loop, look = self._loop(), self._syphon()
        if loop is None or look is None:
            return None
        try:
            return self._facts.facts(call_in(loop, look, LOOK_S), moved)
        except PairbusError as error:  # the application blocks its event loop: the other facts are known without it
            return {"error": str(error)}

    # ── commands of the operator ──

    def _force(self, body: dict[str, Any], *, over: bool) -> dict[str, Any]:
        """Force entities by their names, or with `all` every entity that has a sender; with `new`, others too."""
        names, every, new = body.pop("entities", []), body.pop("all", False), body.pop("new", False)
        if body:
            raise ConfigError(f"{', '.join(body)[:80]!r} is not known; accepted are entities, all and new")
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise ConfigError("entities must be a list of names of queues or topics")
        if not (isinstance(every, bool) and isinstance(new, bool)):
            raise ConfigError("all and new must be true or false")
        if bool(names) == every:
            raise ConfigError('say which: {"entities": ["NAME"]} or {"all": true}')
        state, loop = self._living(), self._loop()
        if loop is None or not loop.is_running():
            raise PairbusError(NOT_AT_WORK)
        return {"entities": call_in(loop, lambda: _forced(state, names, over=over, every=every, new=new))}


def _forced(state: PairState, names: list[str], *, over: bool, every: bool, new: bool) -> list[dict[str, str]]:
    """Force the entities and return their states; every name is checked before the first entity is forced."""
    known = {entity.path.lower(): entity.path for entity in state.pair.entities()}
    unknown = [name for name in names if name.lower() not in known]
    if unknown and not new:
        known_paths = sorted(known.values())
        more = f" and {len(known_paths) - NAMES_SHOWN} more" if len(known_paths) > NAMES_SHOWN else ""
        raise EntityNotFound(
            f"it has no sender for {', '.join(unknown)[:300]}; it has senders for:"
            f" {', '.join(known_paths[:NAMES_SHOWN]) or 'nothing'}{more}"
        )
    paths = sorted(known.values()) if every else [known.get(name.lower(), name) for name in dict.fromkeys(names)]
    before = {path: each.value for path, each in state.states().items()}
    for path in paths:
        state.force(path, over=over)
    after = {path: each.value for path, each in state.states().items()}
    return [{"path": path, "before": before.get(path, "HEALTHY"), "after": after[path]} for path in paths]


def _entity(entity: SendingEntity, counts: dict[str, Any], now: float) -> dict[str, Any]:
    state = entity.state.value
    cause = "" if state == "HEALTHY" else entity.reason
    return {**counts, "path": entity.path, "state": state, "for_s": max(now - entity.since, 0.0), "cause": cause}


def _moved(state: PairState) -> int:
    return int(state.counters.snapshot()["total"]["backlog_moved"])


def _nothing() -> None:
    """Take the place of a weak reference that is not set yet."""


def _is_switched_on() -> bool:
    word, wanted = read_switch(VARIABLE)
    if wanted is None:
        logger.warning("%s=%s is ignored, no control socket is opened: it must be one of %s", VARIABLE, word, WORDS)
    return bool(wanted)
