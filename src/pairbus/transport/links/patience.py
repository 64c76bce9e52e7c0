"""Limits of a sender's waiting: deadlines of calls, and silence of the peer, watched by one timer for each sender.

Silence is time in which the peer owes a sign of life on the link and gives none.
 * Until the last byte of a message has left this machine, any progress of the connection's bytes restarts its clock.
 * Afterwards only frames of the peer on this link do: not heartbeats, not frames of other links.
 * A send that waits for credit waits for the peer, unless messages before it are still on their way out.
 * Time in which this process did not run does not count. A timer that fires late looks again before it decides, after
   the event loop has read the bytes that arrived; one that fires very late gives the peer a fresh allowance.
 * The owner of a link is told (`Sender.when_silent`) when a send ends by silence. While sends end by their deadlines or
   are cancelled, it is told after LINK_SILENCE_S without a frame, from the first of them that got no answer.

The timer looks every sixth of the allowance, because the system tells how many bytes have left, but not when.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from pairbus.pairing.policy import Silence
from pairbus.transport.times import AGAIN_S, LINK_SILENCE_S, LOOK_LATE_S

if TYPE_CHECKING:
    from pairbus.transport.links.sender import Sender

FIRST_LOOK = 1 / 6  # part of the allowance before the first look, and between two looks
LEFT = -1  # mark of a send whose last byte is known to have left

Sent = tuple[asyncio.Future[None], float, float, float, int]
"(future, deadline, silence allowed, begin of the silence, number of flushes when it was sent, or LEFT)"


class WaitingSend:
    """A send in the line, or a caller of `ready`, which has no payload."""

    __slots__ = ("by", "deadline", "future", "message_format", "payload", "silence", "since")

    def __init__(  # noqa: PLR0917 - made for each send that waits: keywords would cost more than they explain
        self,
        future: asyncio.Future[None],
        payload: bytes | None,
        message_format: int,
        deadline: float,
        silence: float,
        since: float,
        by: object,
    ) -> None:
        self.future = future
        self.payload = payload
        self.message_format = message_format
        self.deadline = deadline
        self.silence = silence
        self.since = since
        self.by = by


class Patience:
    """The clocks of one sender."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._wire = sender._wire
        self._loop = self._wire.loop
        self.heard_at = 0.0
        "Time of the peer's last frame on this link."
        self.look_at = math.inf
        self._floor = 0.0
        "Time before which silence does not count, because this process did not run."
        self._unanswered_since = -math.inf
        "Begin of the first silence that ended with a send given up, since the peer's last frame on this link."
        self._looks_again = False
        self._timer: asyncio.TimerHandle | None = None

    def heard(self) -> None:
        self.heard_at = self._wire.core.now

    def look_from(self, when: float) -> None:
        """Look no later than `when`."""
        if when < self.look_at:
            if self._timer is not None:
                self._timer.cancel()
            self.look_at = when
            self._timer = self._loop.call_at(when, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        # The loop may call a little early, by the resolution of its clock.
        wanted, now = self.look_at, max(self._loop.time(), self.look_at)
        self.look_at, self._timer = math.inf, None
        if now - wanted > LOOK_LATE_S and not self._looks_again:
            self._looks_again = True
            self._excuse(wanted, now)
            self.look_from(now + AGAIN_S)
            return
        self._looks_again = False
        uploading, next_look = self._look_at_sent(now)
        self.look_from(min(next_look, self._look_at_waiting(now, uploading)))

    def _excuse(self, wanted: float, now: float) -> None:
        """Leave out the time from `wanted` to now, in which this process did not run."""
        sender, longest, least = self._sender, 0.0, math.inf
        heard = max(self.heard_at, self._floor)
        for _, _, silence, since, _ in sender._sends.values():
            longest, least = max(longest, wanted - max(since, heard)), min(least, silence)
        for entry in sender._waiting:
            longest, least = max(longest, wanted - max(entry.since, heard)), min(least, entry.silence)
        self._floor = now if now - wanted > least * FIRST_LOOK else now - longest

    def _look_at_sent(self, now: float) -> tuple[bool, float]:
        """End late sends; return (True when a message is still on its way out, time of the next look)."""
        sender, progress = self._sender, self._wire.progress
        left, moved_at, extra_s = progress.look(now), progress.moved_at, progress.allowance_s
        outgoing = sender._session.outgoing_ids()
        heard = max(self.heard_at, self._floor)
        uploading, next_look = False, math.inf
        for delivery_id, entry in list(sender._sends.items()):
            future, deadline, silence, since, mark = entry
            if future.done():  # cancelled
                sender.give_up_sent(delivery_id, Silence(0.0, silence))
                if mark == LEFT:
                    self._judge_link(max(since, heard), now, silent=False, owes=True)
                continue
            if mark != LEFT:
                since = max(since, moved_at)
                if delivery_id in outgoing:
                    mark, uploading = progress.flushes, True
                elif progress.has_left(mark, left):
                    mark = LEFT
                else:
                    uploading = True
                sender._sends[delivery_id] = future, deadline, silence, since, mark
            silent_at = max(since, heard) + silence + extra_s
            if deadline <= now or silent_at <= now:
                silent = silent_at <= now
                lasted_s = max(now - max(since, heard) - extra_s, silence if silent else 0.0)
                sender.give_up_sent(delivery_id, Silence(lasted_s, silence))
                self._judge_link(max(since, heard), now, silent=silent, owes=mark == LEFT)
            else:
                next_look = min(next_look, deadline, silent_at, now + silence * FIRST_LOOK)
        return uploading, next_look

    def _look_at_waiting(self, now: float, uploading: bool) -> float:
        sender, next_look = self._sender, math.inf
        heard = max(self.heard_at, self._floor)
        # With credit, a send waits for the window or the socket: there, too, the bytes must move.
        if uploading or sender._link.credit > 0:
            heard = max(heard, self._wire.progress.moved_at)
        for entry in list(sender._waiting):
            silent_at = max(entry.since, heard) + entry.silence
            if entry.deadline <= now or silent_at <= now:
                silent = silent_at <= now
                lasted_s = max(now - max(entry.since, heard), entry.silence if silent else 0.0)
                sender.give_up_waiting(entry, Silence(lasted_s, entry.silence))
                owes = not uploading and sender._link.credit <= 0
                self._judge_link(max(entry.since, heard), now, silent=silent, owes=owes)
            elif not entry.future.done():
                next_look = min(next_look, entry.deadline, silent_at, now + entry.silence * FIRST_LOOK)
        sender.close_ranks()
        return next_look

    def _judge_link(self, since: float, now: float, *, silent: bool, owes: bool) -> None:
        """Tell the owner of the link when a send that was given up shows that the peer may have lost the link.

        `since`: begin of the silence that the send met. `owes`: the peer owed it an answer, or credit.
        """
        if owes:
            if self._unanswered_since < self.heard_at:
                self._unanswered_since = since
            since = max(self._unanswered_since, self._floor)
        if (silent or now - since >= LINK_SILENCE_S) and self._sender.when_silent is not None:
            self._sender.when_silent()
