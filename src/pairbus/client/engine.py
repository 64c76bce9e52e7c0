"""One client at work in one event loop: connections to its namespaces, sends, background tasks, closing.

The asyncio client is a face of an engine in the application's loop; the sync client is a face of one in a thread.
An engine belongs to the loop in which it was made. When that loop has ended, or the process was forked, the client
makes another engine on the same `PairState`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client.background import PUMP_GRACE_S, Background
from pairbus.client.outgoing import Outgoing
from pairbus.client.provisioning import provision
from pairbus.client.receiving.entity_receiver import EntityReceiver
from pairbus.client.receiving.options import ReceiverOptions
from pairbus.client.receiving.shared import Receiving
from pairbus.client.results import Origin
from pairbus.client.sends import Sends
from pairbus.client.state import PairState
from pairbus.pairing.commands import ToPrimary
from pairbus.pairing.options import SEND_TIMEOUT_S
from pairbus.pairing.side_states import PairSide
from pairbus.transport import Management, Scheduled
from pairbus.transport.tasks import Tasks
from pairbus.transport.threads import in_thread, outcome_of

logger = logging.getLogger("pairbus")

LEAST_S = 0.001
SPOOL_OPEN_S = 2.0  # for the disk of the spool, before a client goes on without it

T = TypeVar("T")


class Engine:
    """The part of a client that does all its work, in the running event loop."""

    def __init__(self, state: PairState) -> None:
        self.loop = asyncio.get_running_loop()
        self.state = state
        self._over = asyncio.Event()
        "Set when the client is closed or faulted."
        self._carriers = {name: side.new_carrier(state.options.connect_timeout) for name, side in state.sides.items()}
        self._primary = self._carriers["primary"]
        self._sends = Sends(state, self._carriers, self._over)
        self.receiving = Receiving(state)
        self._background: Background | None = None
        self._pairing: asyncio.Task[None] | None = None
        self._callers_of_pairing = 0
        self._ending: asyncio.Task[None] | None = None
        self.tasks = Tasks()
        "Tasks for whose end nobody waits."
        state.events.wake = self._wake
        state.control.serve(self.loop)
        if state.is_paired:  # in another loop, or before a fork
            self._start_background(late=state.pair.enabled and not state.pair.rotation.queues)

    # ── pairing ──

    async def pair(self) -> None:
        """Find or create the backlog queues; all callers share one attempt."""
        self.state.check()
        if self.state.is_paired:
            return
        if self._pairing is None:
            self._pairing = asyncio.create_task(self._pair())
            self._pairing.add_done_callback(self._pairing_ended)
        pairing = self._pairing
        self._callers_of_pairing += 1
        try:
            await asyncio.wait([pairing])  # a caller that is cancelled ends its own wait only
        finally:
            self._callers_of_pairing -= 1
        if pairing.cancelled():
            self.state.check()  # raises when the closing of the client ended it
        pairing.result()

    def _pairing_ended(self, pairing: asyncio.Task[None]) -> None:
        self._pairing = None
        error = None if pairing.cancelled() else pairing.exception()
        if error is not None and not self._callers_of_pairing:  # the next call tries again
            logger.warning("%s was not paired: %s", self.state.primary.name, error)

    async def _pair(self) -> None:
        state, late = self.state, False
        if state.pair.enabled:
            await self._open_spool()
            try:
                state.check()
                if not state.pair.rotation.queues:  # a forked process knows the queues
                    queues = await self._provision()
                    state.check()
                    state.paired_with(queues)
            except Exception as error:
                state.check()
                if not state.may_start_unpaired(error):
                    raise
                late = True
        state.is_paired = True
        self._start_background(late=late and state.pair.enabled)  # the pairing may have been cleared meanwhile
        state.events.deliver()

    async def _open_spool(self) -> None:
        """Open the spool, or go on without it while its disk does not answer: sends to healthy namespaces need none."""
        opening = self.state.open_spool()
        if opening is None:
            return
        opened = outcome_of(opening)
        await asyncio.wait([opened], timeout=SPOOL_OPEN_S)
        if opened.done():
            opened.result()
        else:  # the forwarder waits for the spool, and tells its error
            text = "the disk of %s does not answer: %s goes on without its spool until it does"
            logger.warning(text, self.state.options.spool_dir, self.state.primary.name)

    async def _pair_within(self, timeout_s: float) -> float:
        """Pair for a call with a time-out, and return the rest of the time. Pairing goes on when the time is over."""
        ends = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self.pair()
        except TimeoutError:
            names = f"{self.state.primary.name} with {self.state.secondary.name}"
            raise OperationTimeoutError(
                message=f"pairing of {names} has not completed within {timeout_s:.1f} s. Nothing was sent by this"
                " call; pairing goes on."
            ) from None
        return max(ends - time.monotonic(), LEAST_S)

    async def _provision(self) -> list[str]:
        state = self.state
        state.pairing_begins()
        return await provision(state.secondary, state.primary_name, state.options, state.meters.pairing)

    async def clear_pairing(self) -> None:
        """Forget all state and timers; the spool is given back."""
        self.state.clear_pairing()
        await self._stop_background(PUMP_GRACE_S)
        await in_thread("pairbus-release", self.state.spool.close)  # the threads for the disk may hang

    # ── sends ──

    async def send(self, origin: Origin, outgoing: Outgoing, timeout_s: float) -> None:
        """Send; return when a place has stored the messages, raise when none did. Pairs first if needed."""
        state = self.state
        if not state.is_paired or state.is_closed or state.is_faulted:
            state.check()
            try:
                timeout_s = await self._pair_within(timeout_s)
            except Exception as error:
                self._sends.results.failed_before(origin, len(outgoing), error)
                raise
        await self._sends.send(origin, outgoing, timeout_s)

    async def schedule(
        self, origin: Origin, outgoing: Outgoing, entries: Sequence[Scheduled], timeout_s: float
    ) -> list[int]:

        async def ask(node: Management, left_s: float, silence_s: float) -> list[int]:
            return await node.schedule(entries, left_s, silence_s)

        return await self._request(origin, outgoing, ask, timeout_s)

    async def cancel(self, origin: Origin, numbers: Sequence[int], timeout_s: float) -> None:
        async def ask(node: Management, left_s: float, silence_s: float) -> None:
            await node.cancel(numbers, left_s, silence_s)

        await self._request(origin, None, ask, timeout_s)

    async def _request(
        self,
        origin: Origin,
        outgoing: Outgoing | None,
        request: Callable[[Management, float, float], Awaitable[T]],
        timeout_s: float,
    ) -> T:
        """Make a request to the entity's `$management` node in the primary."""

        async def ask(attempt: ToPrimary) -> T:
            ends = self.loop.time() + attempt.timeout_s
            node = await self._primary.management(origin.path, attempt.timeout_s, opening_s=attempt.opening_s)
            return await request(node, ends - self.loop.time(), attempt.silence_s)

        self.state.check()
        if not self.state.is_paired:
            timeout_s = await self._pair_within(timeout_s)
        return cast(T, await self._sends.request(origin, outgoing, ask, timeout_s))

    async def batch_limit(self, origin: Origin) -> int:
        """Return the largest batch that the primary takes; opens a link if there was none. 0: it is not known."""
        state = self.state
        state.check()
        if not state.is_paired:
            await self.pair()
        known = self._primary.batch_limit(origin.path)
        if known or state.pair.is_diverted(origin.sender.entity, time.monotonic()):
            return known
        return await self._sends.batch_limit(origin, SEND_TIMEOUT_S)

    async def forget_link(self, origin: Origin) -> None:
        """Close the link of a closed sender that had a `client_identifier`, unless another sender uses the link."""
        if origin.link_name is not None and not self.state.link_users.has(origin.path, origin.link_name):
            self._primary.forget(origin.path, origin.link_name)

    # ── receivers ──

    def new_receiver(self, options: ReceiverOptions) -> EntityReceiver:
        """Return a receiver of the primary that is not open yet; it ends with this engine."""
        self.state.check()
        return EntityReceiver(self.receiving, options)

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function in the event loop, for another thread."""
        return function()

    # ── background tasks ──

    def _wake(self) -> None:
        if self._background is not None:
            self._background.wake()
        elif self.state.is_paired and self.state.clocks_run:
            self._start_background(late=False)

    def _start_background(self, *, late: bool) -> None:
        state = self.state
        is_wanted = (late or state.needs_background) and not state.is_closed and not state.is_faulted
        if self._background is None and is_wanted:
            self._background = Background(state, self._carriers, self._provision, late=late)

    async def _stop_background(self, grace_s: float) -> None:
        background, self._background = self._background, None
        if background is not None:
            await background.stop(grace_s)

    # ── the end ──

    def fault(self, side: PairSide, reason: str) -> None:
        """Declare one side unusable; pings, pumps and waiting sends end at once when the client is unusable with it."""
        if self.state.fault(side, reason) and self.state.is_faulted:
            self._over.set()
            self.receiving.end()
            if self._background is not None:
                self._background.halt()

    async def close(self) -> None:
        """Stop pings and pumps, let sends end for five seconds, close both connections.

        `state.is_closed` is set before, so that no new call begins. Closing goes on when the caller is interrupted, and
        a later caller waits for it.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.wait([self._ending])
        self._ending.result()

    async def _end(self) -> None:
        state = self.state
        self._over.set()
        if self._pairing is not None:
            self._pairing.cancel()
        await asyncio.gather(
            self.receiving.close(PUMP_GRACE_S), self._stop_background(PUMP_GRACE_S), self._sends.settle(PUMP_GRACE_S)
        )
        await asyncio.gather(*(carrier.close() for carrier in self._carriers.values()))
        state.closed()
