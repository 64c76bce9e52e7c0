"""Receivers of sessions: those that apply for a session, those that have one, and which of them gets the next message.

Unlike the receivers of a plain box they do not take turns: each gets the messages of its own session. Only receivers
whose session or link has changed are looked at, because there may be thousands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pairbus.amqp.errors import DETACH_FORCED
from pairbus.amqp.link import SenderLink
from pairbus.amqp.performatives import Attach, Coordinator, Source
from pairbus.amqp.types import Described, Long, Symbol
from pairbus.auth.sas import LISTEN
from pairbus.broker.boxes.box import Box
from pairbus.broker.boxes.holds import Hold
from pairbus.broker.entities.receivable import Receivable
from pairbus.broker.refusal import TIMEOUT, Refusal
from pairbus.broker.wire.dispatch import STORE_PAUSE_S, TURN_MAX
from pairbus.broker.wire.link_handler import EntityLink
from pairbus.broker.wire.outlet import Outlet
from pairbus.errors import StoreError

if TYPE_CHECKING:
    from pairbus.broker.outages import NamespaceFaults
    from pairbus.broker.wire.peer import Peer

logger = logging.getLogger("pairbus.broker")

SESSION_FILTER = "com.microsoft:session-filter"
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
WAIT_MS = 60_000  # time to wait for a session, when the receiver names none
TICKS_OF_1970 = 621_355_968_000_000_000
TICKS_PER_MS = 10_000


def session_asked_for(source: Source | None) -> Any:
    """Return the value of the session filter; None: the next available session. LookupError: there is no filter.

    The Go SDK writes it as a described value.
    """
    value = ((source and source.filter) or {})[SESSION_FILTER]
    return value.value if isinstance(value, Described) else value


class Applicant(EntityLink):
    """A link that waits for a session; then its end is an `Outlet`."""

    link: SenderLink
    entity: Receivable

    def __init__(self, peer: Peer, link: SenderLink, attach: Attach, entity: Receivable, box: Box, path: str) -> None:
        super().__init__(peer, link, entity, path)
        self.box = box
        self.session_id: str | None = session_asked_for(attach.source)
        "Session id that it asks for; None: the next available session."
        wait_ms = (attach.properties or {}).get("com.microsoft:timeout")
        self.wait_s = (wait_ms if isinstance(wait_ms, int) else WAIT_MS) / 1000
        self.timer: asyncio.TimerHandle | None = None
        self._attach = attach
        self._outlet = Outlet(peer, link, entity, box, path)

    def __repr__(self) -> str:
        return f"<Applicant for {self.session_id!r} of {self.entity.path}>"

    def lead_to(self, entity: Receivable, box: Box) -> None:
        """Wait for a session of another entity: the one that replaced the first in a reset."""
        self.entity, self.box = entity, box
        self._outlet.lead_to(entity, box)

    def try_now(self, now_ms: int) -> bool:
        """Attach the link when there is a session for it, refuse it when there will be none; False: it still waits."""
        sessions = self.entity.sessions
        assert sessions is not None
        [path] = self.paths
        if not self.peer.allows(path, LISTEN):  # the token ended while it waited
            self.end(self.peer.expired(self.link, path))
            return True
        try:
            hold = sessions.accept(self.session_id, self._outlet, now_ms)
        except Refusal as refusal:
            self.end(refusal)
            return True
        if hold is None:
            return False
        self._stop_timer()
        self._grant(hold)
        return True

    def _grant(self, hold: Hold) -> None:
        attach, source = self._attach, self._attach.source
        assert isinstance(source, Source) and not isinstance(attach.target, Coordinator)
        self._outlet.hold = hold
        self.link.context = self._outlet
        asked, granted = (source.filter or {})[SESSION_FILTER], hold.session.id
        answer = Described(asked.descriptor, granted) if isinstance(asked, Described) else granted
        self.link.attach(
            source=replace(source, filter={**(source.filter or {}), Symbol(SESSION_FILTER): answer}),
            target=attach.target,
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=attach.rcv_settle_mode,
            properties={LOCKED_UNTIL: Long(TICKS_OF_1970 + hold.until_ms * TICKS_PER_MS)},
        )
        self.peer.namespace.listen(self._outlet)
        self.peer.flush_soon()

    def end(self, refusal: Refusal) -> None:
        """Refuse the attach."""
        self.close()
        self.peer.namespace.links.discard(self.link)
        if not self.peer.is_over and not self.link.session.is_over:
            self.link.context = None
            self.link.refuse(self.peer.error_of(refusal), bare=self.peer.strictness.bare_refusals)
            self.peer.flush_soon()

    def withdrawn(self) -> None:
        """Note that the client has given up."""
        self.end(Refusal(DETACH_FORCED, "The link was detached before it was attached."))

    def time_is_over(self) -> None:
        text = f"No session of '{self.entity.path}' became available within {self.wait_s:.0f} seconds."
        self.end(Refusal(TIMEOUT, text))

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def close(self) -> None:
        self._stop_timer()
        self.peer.namespace.stop_applying(self)


class SessionDispatcher:
    """Gives sessions of one box to the links that apply, and messages to the links that have a session."""

    def __init__(
        self,
        entity: Receivable,
        box: Box,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        on_locked: Callable[[Receivable], None],
        faults: NamespaceFaults,
        is_metered: bool = False,
    ) -> None:
        assert box.sessions is not None
        self.entity = entity
        self.box = box
        self.outlets: dict[Outlet, None] = {}
        self._sessions = box.sessions
        self._loop = loop
        self._now_ms = now_ms
        self._on_locked = on_locked
        self._faults = faults
        self._is_metered = is_metered
        self._is_scheduled = False
        self._woken: dict[Outlet, None] = {}
        self._resting: set[Outlet] = set()
        "Receivers whose messages could not be read, until the pause is over."
        self._for_next: dict[Applicant, None] = {}
        self._for_named: dict[Applicant, None] = {}

    @property
    def has_waiting_receiver(self) -> bool:
        """True while a link has credit, or applies for a session."""
        return bool(self._for_next or self._for_named) or any(outlet.link.credit for outlet in self.outlets)

    def apply(self, applicant: Applicant) -> None:
        """Give the applicant a session now, or when there is one, or refuse it when its time is over."""
        waiting = self._for_next if applicant.session_id is None else self._for_named
        if (applicant.session_id is None and waiting) or not applicant.try_now(self._now_ms()):
            waiting[applicant] = None
            if applicant.timer is None:
                applicant.timer = self._loop.call_later(applicant.wait_s, applicant.time_is_over)
        self._on_locked(self.entity)

    def stop_applying(self, applicant: Applicant) -> None:
        self._for_next.pop(applicant, None)
        self._for_named.pop(applicant, None)

    def add(self, outlet: Outlet) -> None:
        self.outlets[outlet] = None

    def remove(self, outlet: Outlet) -> None:
        self.outlets.pop(outlet, None)
        self._woken.pop(outlet, None)
        self._resting.discard(outlet)
        self.wake()

    def wake(self, outlet: Outlet | None = None) -> None:
        """Note that a message came, a session became free, or one link got credit or an open window."""
        if outlet is not None and outlet in self.outlets and outlet not in self._resting:
            self._woken[outlet] = None
        if not self._is_scheduled and (self.outlets or self._for_next or self._for_named):
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def wake_later(self) -> None:
        """Try again after a pause, because the store failed."""
        self._loop.call_later(STORE_PAUSE_S, self._wake_all)

    def _wake_all(self) -> None:
        self._resting.clear()
        self._woken.update(self.outlets)
        self.wake()

    def _run(self) -> None:
        self._is_scheduled = False
        self._hand_out(self._now_ms())
        self._grant(self._now_ms())

    def _hand_out(self, now_ms: int) -> None:
        stirred = self._sessions.stirred
        for session in stirred:
            holder = None if session.hold is None else session.hold.holder
            if isinstance(holder, Outlet) and holder in self.outlets and holder not in self._resting:
                self._woken[holder] = None
        stirred.clear()
        left = TURN_MAX
        while self._woken and left > 0:
            outlet = next(iter(self._woken))
            try:
                left -= self._serve(outlet, left, now_ms)
            except StoreError as error:
                self._rest(outlet, error)
            if left > 0:
                self._woken.pop(outlet, None)
        if left < TURN_MAX or self._resting:  # a receiver may have got some messages before the error
            self._on_locked(self.entity)
        if self._woken:
            self.wake()

    def _rest(self, outlet: Outlet, error: StoreError) -> None:
        """Leave a receiver out until the pause is over; receivers of other sessions go on."""
        logger.error("%s: messages cannot be read, the next try is in %s s: %s", self.entity, STORE_PAUSE_S, error)
        if not self._resting:
            self.wake_later()
        self._resting.add(outlet)

    def _serve(self, outlet: Outlet, limit: int, now_ms: int) -> int:
        """Give a receiver messages for `limit` shares of a turn, and return how many shares they took."""
        hold, handed, is_exhausted = outlet.hold, 0, False
        acts, keeps = self._faults.acts, self._faults.operations.keeps
        while handed < limit and (room := outlet.room) and not (acts and keeps(outlet, now_ms)):
            taken = outlet.take(self.box, 1 if acts else min(room, limit - handed), now_ms)
            if not taken:
                is_exhausted = True
                break
            handed += taken
        if self._is_metered:
            outlet.meter_deliveries()
        is_empty = is_exhausted or (hold is not None and (hold.is_over or not hold.session.waiting))
        if is_empty or not outlet.has_budget:
            outlet.end_drain()
        return handed

    def _grant(self, now_ms: int) -> None:
        granted = False
        for applicant in list(self._for_named):
            if applicant.try_now(now_ms):
                self.stop_applying(applicant)
                granted = True
        while self._for_next:
            applicant = next(iter(self._for_next))
            if not applicant.try_now(now_ms):
                break
            self.stop_applying(applicant)
            granted = True
        if granted:
            self._on_locked(self.entity)
