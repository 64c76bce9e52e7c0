"""The control socket of `pairbus syphon`, and the facts that every syphon tells."""

from __future__ import annotations

import os
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pairbus.errors import PairbusError
from pairbus.host.control.rate import Rate
from pairbus.host.control.serving import ControlServer, by_routes, call_in, open_server, program
from pairbus.syphon.syphon import SyphonProgress

LOOK_S = 1.0

Look = Callable[[], SyphonProgress]
"Called in the event loop of the syphon."


class SyphonFacts:
    """Tells the progress of one syphon and its rate over the last minute."""

    def __init__(self) -> None:
        self._rate = Rate()
        self._lock = threading.Lock()  # requests are answered in threads of their own

    def tick(self, moved: int) -> None:
        with self._lock:
            self._rate.add(moved, time.monotonic())

    def facts(self, progress: SyphonProgress, moved: int) -> dict[str, Any]:
        """Return the counts of a progress as JSON has them. `moved` may count messages from before this syphon."""
        with self._lock:
            per_s, over_s = self._rate.per_s(moved, time.monotonic())
        counts = {
            name: value for name, value in asdict(progress).items() if name not in ("per_s", "is_away", "waiting")
        }
        return {**counts, "moved": moved, "per_second": per_s, "over_s": over_s, "primary_away": progress.is_away}


class SyphonControl:
    """The socket of a syphon that is a process of its own. It tells facts and takes no commands."""

    def __init__(self, loop: AbstractEventLoop, look: Look, names: dict[str, str]) -> None:
        """Open the socket; ConfigError when that fails. `names`: primary, secondary and primary_name."""
        self._loop = loop
        self._look = look
        self._names = names
        self._facts = SyphonFacts()
        self._facts.tick(look().moved)
        self._server: ControlServer = open_server("syphon", None, by_routes({("GET", "/"): self._describe}), self._tick)

    def close(self) -> None:
        self._server.close()

    def _describe(self, _: dict[str, Any]) -> dict[str, Any]:
        progress = call_in(self._loop, self._look, LOOK_S)
        identity = {"role": "syphon", "pid": os.getpid(), "program": program(), **self._names}
        return {**identity, "syphon": self._facts.facts(progress, progress.moved)}

    def _tick(self) -> None:
        try:
            self._facts.tick(call_in(self._loop, self._look, LOOK_S).moved)
        except PairbusError:
            return  # the loop is busy, or ends: the rate is then measured over a longer time
