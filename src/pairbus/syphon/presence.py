"""Knows whether the primary as a whole is reachable or away.

It is away when no connection to it can be opened: refused, reset, or silent before the connection is open. The error of
one entity, also its silence on an open connection, does not mean that the others fail.

Laws of this file.
 1. While the primary is away the pumps of a syphon receive and hold no messages; one probe asks for all of them.
 2. The first probe comes at once, the next ones after growing pauses. The pauses begin anew only when a message was
    delivered since the last outage: a primary that opens connections and drops them is not probed all the time.
 3. All pumps wake at the first answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pairbus.errors import ConfigError
from pairbus.pairing.events import Event, PrimaryReachable, PrimaryUnreachable
from pairbus.pairing.policy import Failure, Kind
from pairbus.syphon.decide.pace import Pauses
from pairbus.transport import Carrier
from pairbus.transport.errors import TransportError, failure_of

logger = logging.getLogger("pairbus.syphon")

MOST = 0.84  # of a call: the begin of a silence may be noticed a sixth of it later


class Presence:
    """All pumps share it. May be made outside of the event loop, and is used in it."""

    def __init__(self, interval_s: float) -> None:
        self._pauses = Pauses(interval_s)
        self.is_away = False
        self._away = asyncio.Event()
        self._back = asyncio.Event()
        self._back.set()
        self._path = ""
        self._reason = ""
        self._since = 0.0
        self._back_at = float("-inf")
        self._first_pause_s = 0.0

    @property
    def reason(self) -> str:
        return self._reason

    @property
    def since(self) -> float:
        return self._since

    def lost(self, path: str, reason: str, now: float, delivered_at: float) -> None:
        """Note that no connection could be opened, or that the open one broke, while sending to `path`."""
        if self.is_away:
            return
        if delivered_at >= self._back_at:
            self._pauses.after(delivered=True)
            self._first_pause_s = 0.0
        else:
            self._first_pause_s = self._pauses.after(delivered=False)
        self._path, self._reason, self._since = path, reason, now
        self.is_away = True
        self._back.clear()
        self._away.set()

    async def gone(self) -> None:
        """Wait until the primary is away."""
        await self._away.wait()

    async def back(self) -> None:
        """Wait until the primary answers."""
        await self._back.wait()

    async def watch(
        self,
        primary: Carrier,
        timeout_s: float,
        clock: Callable[[], float],
        publish: Callable[[Event], None],
        on_refusal: Callable[[str, Failure], None],
    ) -> None:
        """Probe the primary whenever it is away, until it answers. Runs as long as the syphon.

        `on_refusal` is called when the probe's entity refuses the link: the primary answers, but the entity does not
        take messages.
        """
        name = primary.endpoint.authority
        while True:
            await self.gone()
            pause_s, has_warned = self._first_pause_s, False
            if pause_s:
                publish(PrimaryUnreachable(name, self._reason, clock() - self._since, pause_s))
                await asyncio.sleep(pause_s)
            while (error := await _ask(primary, self._path, timeout_s, on_refusal)) is not None:
                pause_s = self._pauses.after(delivered=False)
                self._reason = str(error)
                if not has_warned:
                    logger.warning("%s cannot be reached: %s", name, error)
                has_warned = True
                publish(PrimaryUnreachable(name, self._reason, clock() - self._since, pause_s))
                await asyncio.sleep(pause_s)
            self._back_at = clock()
            self.is_away = False
            self._away.clear()
            self._back.set()
            if has_warned:
                publish(PrimaryReachable(name, self._back_at - self._since))


def was_silent(error: TransportError, primary: Carrier, timeout_s: float) -> bool:
    """Tell whether the primary was silent when a call with this time-out was given up: for as long as the call or an
    opening allows, or for most of the call. An opening allows each of several addresses a part of its time."""
    silence = error.silence
    if silence is None:
        return False
    return silence.is_too_long or silence.lasted_s >= min(primary.connect_timeout_s, timeout_s * MOST)


async def _ask(
    primary: Carrier, path: str, timeout_s: float, on_refusal: Callable[[str, Failure], None]
) -> TransportError | None:
    """Open a link; return the error when the primary is away, or None when it answers."""
    try:
        await primary.connection(timeout_s)
        await primary.sender(path, timeout_s)
    except TransportError as error:
        if error.silence is not None:
            if was_silent(error, primary, timeout_s) and not primary.is_connected:
                return error
            primary.forget(path)  # the primary is slow, or only this entity is silent
            return None
        failure = failure_of(error)
        if failure.kind is Kind.COMMUNICATION and not primary.is_connected:
            return error
        on_refusal(path, failure)
    except ConfigError as error:  # the connection string is for another entity; the connection is open
        logger.debug("%s: %s", path, error)
    return None
