"""Calls: attempts on the primary, backlog queues and the spool, as the plan of the call says.

A send goes one of three ways; `pairing.sending.first_attempt` decides which by the state of the entity.

| way      | when                                          | it is                                                     |
| -------- | --------------------------------------------- | --------------------------------------------------------- |
| direct   | HEALTHY                                       | one attempt on the primary; planned when it fails         |
| diverted | FAILED_OVER or HELD_OVER, its queue is known  | one attempt on that backlog queue; planned when it fails  |
| planned  | everything else, and messages wait in a spool | the commands of `pairing.sending.sending`, one by one     |

All code here runs in the engine's event loop, so no locks are needed: decisions are taken between two awaits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError

from pairbus.client.errors import (
    ClientClosed,
    PairedMessagingFactoryError,
    ScheduleWhileFailedOver,
    tell_outcome,
    tells_outcome,
)
from pairbus.client.outgoing import ANY_PLACE, BATCH_LIMIT, THE_PRIMARY, THE_SPOOL, Outgoing, parcels
from pairbus.client.results import Origin, Results, ended_meanwhile, error_of
from pairbus.client.state import PairState
from pairbus.errors import ConfigError, SpoolError
from pairbus.pairing.policy import Failure, Kind, Reaction
from pairbus.pairing.sending import (
    Attempt,
    Command,
    Pause,
    Plan,
    Receipt,
    Reply,
    ToBacklog,
    ToPrimary,
    ToSpool,
    Unsent,
    Where,
    accepted_away,
    first_attempt,
    requesting,
    sending,
)
from pairbus.sdk.failures import failure_of_transport
from pairbus.spool.lanes import queueing
from pairbus.telemetry import operations
from pairbus.transport import Carrier, TransportError

logger = logging.getLogger("pairbus")

IN_PRIMARY = Receipt(Where.PRIMARY)

Request = Callable[[ToPrimary], Awaitable[Any]]
"Function that makes a request to the primary, within the limits of an attempt."


class Sends:
    """The calls of one client, carried out. `closing` is set when the client is being closed."""

    def __init__(
        self,
        state: PairState,
        primary: Carrier,
        secondary: Carrier,
        closing: asyncio.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._primary = primary
        self._secondary = secondary
        self._closing = closing
        self._clock = clock
        self.results = Results(state, primary, clock)
        self._under_way = 0
        "Calls that have not ended."
        self._idle: asyncio.Event | None = None
        "Event that is set when the last call has ended; made by the call that waits for that."

    # ── a send ──

    @operations.send
    async def send(self, origin: Origin, going: Outgoing, timeout_s: float) -> Receipt:
        """Send; return where the messages are stored (primary, backlog queue or spool), raise when nowhere."""
        state, sender, began = self._state, origin.sender, self._clock()
        self._under_way += 1
        try:
            tried = None
            attempt = None if state.waits(sender.entity) else first_attempt(state.pair, sender, timeout_s)
            if attempt is not None:
                count = len(going)
                reply = await self._attempt(attempt, origin, going)
                if reply.failure is None:
                    if type(attempt) is ToBacklog:
                        accepted_away(state.pair, attempt.queue)
                        state.events.deliver()
                        return Receipt(Where.BACKLOG, attempt.queue)
                    self.results.direct(origin, count)
                    return IN_PRIMARY
                tried = (attempt, reply)
            return await self._send_planned(origin, going, timeout_s, began, tried)
        except Exception as error:
            if not tells_outcome(error):  # a wrong setting, before anything was sent, or a bug of ours
                tell_outcome(error, going.may_be_in or (() if isinstance(error, ConfigError) else ANY_PLACE))
            raise
        finally:
            self._end_call()

    async def _send_planned(
        self, origin: Origin, going: Outgoing, timeout_s: float, now: float, tried: tuple[Attempt, Reply] | None
    ) -> Receipt:
        state, sender = self._state, origin.sender
        if tried is None and state.waits(sender.entity):
            waits = partial(state.waits, sender.entity)
            plan = queueing(state.pair, sender, timeout_s, now, state.inflow, waits)
        else:
            plan = sending(state.pair, sender, timeout_s, now, tried=tried)
        try:
            receipt = await self._carry_out(plan, partial(self._perform, origin, going), going)
        except Unsent as unsent:
            self.results.failed(origin, len(going), unsent.failure.kind)
            raise error_of(unsent, origin.path, going, ordered=state.options.ordered) from unsent.failure.error
        except (ClientClosed, PairedMessagingFactoryError) as ended:
            self.results.failed(origin, len(going), Kind.COMMUNICATION)
            raise ended_meanwhile(ended, origin.path, going) from None
        self.results.planned(origin, going, receipt)
        return receipt

    async def _carry_out(
        self, plan: Plan, perform: Callable[[Command], Awaitable[Reply]], going: Outgoing | None
    ) -> Receipt:
        """Perform the commands of a plan until it ends."""
        reply: Reply | None = None
        try:
            while True:
                try:
                    command = next(plan) if reply is None else plan.send(reply)
                except StopIteration as end:
                    return cast(Receipt, end.value)
                self._state.events.deliver()
                if going is not None and going.is_cancelled:
                    raise asyncio.CancelledError
                self._state.check()
                reply = await perform(command)
        finally:
            plan.close()
            self._state.events.deliver()

    async def _perform(self, origin: Origin, going: Outgoing, command: Command) -> Reply:
        if isinstance(command, ToPrimary | ToBacklog):
            return await self._attempt(command, origin, going)
        if isinstance(command, ToSpool):
            return Reply(self._clock(), await self._to_spool(origin, going, command))
        return await self._pause(command)

    async def _attempt(self, attempt: Attempt, origin: Origin, going: Outgoing) -> Reply:
        if type(attempt) is ToPrimary:
            return await self._to_primary(origin, going, attempt)
        assert type(attempt) is ToBacklog
        return await self._to_backlog(origin, going, attempt)

    async def _pause(self, command: Pause) -> Reply:
        with suppress(TimeoutError):
            async with asyncio.timeout(command.seconds):
                await self._closing.wait()
        self._state.check()
        return Reply(self._clock())

    def _end_call(self) -> None:
        self._under_way -= 1
        if self._idle is not None and not self._under_way:
            self._idle.set()

    async def settle(self, timeout_s: float) -> None:
        """Wait until no call is under way, or the time is over."""
        if not self._under_way:
            return
        self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("%d calls were still under way when the client was closed", self._under_way)

    # ── the three places ──

    async def _to_primary(self, origin: Origin, going: Outgoing, attempt: ToPrimary) -> Reply:
        payload, message_format = going.for_primary()
        failure = await self._deliver(
            self._primary, origin.path, payload, message_format, attempt, origin, name=origin.link_name
        )
        if failure is None:
            self.results.meter_direct(origin, going)
            if len(payload) > BATCH_LIMIT // 2:
                self.results.watch_size(origin, going)
            return Reply(self._clock())
        self._state.meters.send("primary", origin.path, going.payloads, failure, "application")
        if failure.outcome_unknown:
            going.unanswered(THE_PRIMARY)
        return Reply(self._clock(), failure)

    @operations.divert
    async def _to_backlog(self, origin: Origin, going: Outgoing, attempt: ToBacklog) -> Reply:
        """Send the rest as wrapped copies; messages that the queue stored are taken off and told, after errors too."""
        queue, first_at = attempt.queue, attempt.first_attempt_at
        deadline = self._clock() + attempt.timeout_s
        wrapped = going.wrapped(origin.path, self._wall_ms(first_at), origin.order)
        failure: Failure | None = None
        try:
            if max(map(len, wrapped)) > BATCH_LIMIT and not self._secondary.batch_limit(queue):
                failure = await self._learn_limits(queue, attempt)
                if failure is not None:
                    return Reply(self._clock(), failure)
                attempt = replace(attempt, timeout_s=max(deadline - self._clock(), 0.001), fresh=False)
            parts = parcels(wrapped, self._secondary.batch_limit(queue), self._secondary.message_limit(queue))
            for payload, message_format, count in parts:
                failure = await self._deliver(self._secondary, queue, payload, message_format, attempt, origin)
                if len(parts) > 1:  # a later part goes on the connection that took the first, within the same time
                    attempt = replace(attempt, timeout_s=max(deadline - self._clock(), 0.001), fresh=False)
                self._state.meters.send("secondary", queue, wrapped[:count], failure, "failover")
                if failure is not None:
                    if failure.outcome_unknown:
                        going.unanswered(queue, count)
                    break
                going.stored(count, queue)
                del wrapped[:count]
        except MessageSizeExceededError as error:
            failure = Failure(Kind.TOO_LARGE, str(error), error=error)
        finally:
            self.results.diverted(origin, going, outcome_unknown=first_at is not None)
        return Reply(self._clock(), failure)

    async def _learn_limits(self, queue: str, attempt: ToBacklog) -> Failure | None:
        """Open the link to a backlog queue, which tells the sizes that the queue takes."""
        try:
            await self._secondary.sender(queue, attempt.timeout_s, opening_s=attempt.opening_s, fresh=attempt.fresh)
        except TransportError as error:
            return failure_of_transport(error)
        return None

    async def _deliver(
        self,
        carrier: Carrier,
        path: str,
        payload: bytes,
        message_format: int,
        attempt: Attempt,
        by: Origin,
        *,
        name: str | None = None,
    ) -> Failure | None:
        """Make one attempt; return its failure."""
        try:
            await carrier.send(
                path,
                payload,
                message_format=message_format,
                timeout_s=attempt.timeout_s,
                silence_s=attempt.silence_s,
                opening_s=attempt.opening_s,
                name=name,
                fresh=attempt.fresh,
                by=by,
            )
        except TransportError as error:
            return failure_of_transport(error)
        return None

    async def _to_spool(self, origin: Origin, going: Outgoing, command: ToSpool) -> Failure | None:
        """Return when the disk has the messages. A write that has begun when the time is over may store them later."""
        state, spool = self._state, self._state.spool.open_spool
        entries = going.entries(origin.path, self._wall_ms(command.first_attempt_at), origin.order)
        try:
            if spool is None:
                is_opening = state.spool.is_opening
                why = "The spool's disk has not answered yet" if is_opening else "The spool was closed with the pairing"
                raise SpoolError(f"{why}. This was not stored.")
            state.inflow.came(origin.path, len(entries), self._clock())
            writing = state.spool.disk.submit(spool.append, entries)
            stored = asyncio.wrap_future(writing)
            stored.add_done_callback(_ask_outcome)
            try:
                # A write that has begun goes on when the caller is cancelled; `asyncio.shield` would log its errors.
                await asyncio.wait([stored], timeout=command.timeout_s)
            finally:
                is_dropped = writing.cancel()  # it has not begun, because the disk hangs, and is not made any more
            if is_dropped or not writing.done():
                if not is_dropped:
                    going.unanswered(THE_SPOOL)
                text = f"the spool's disk did not answer for {command.timeout_s:.1f} s"
                return Failure(Kind.TIMEOUT, text, outcome_unknown=not is_dropped)
            writing.result()
        except SpoolError as error:
            return Failure(Kind.INTERNAL, str(error), False, error)
        return None

    # ── requests ──

    @operations.request
    async def request(self, origin: Origin, going: Outgoing | None, ask: Request, timeout_s: float) -> Any:
        """Make a request to the primary, with the failure table of a send; ScheduleWhileFailedOver when it is away."""

        try:
            return await self._ask(origin, ask, timeout_s, partial(self._state.meters.request, origin.path, going))
        except Unsent as unsent:
            cause, places = unsent.failure.error, (THE_PRIMARY,) if unsent.outcome_unknown else ()
            if unsent.where is Where.BACKLOG:
                raise ScheduleWhileFailedOver(origin.path, places) from cause
            error = cause or OperationTimeoutError(message=unsent.failure.text)
            tell_outcome(error, places)
            raise error from cause

    async def batch_limit(self, origin: Origin, timeout_s: float) -> int:
        """Open the link to the primary and return its largest batch; 0 when the primary is away."""

        async def ask(attempt: ToPrimary) -> int:
            sender = await self._primary.sender(
                origin.path, attempt.timeout_s, opening_s=attempt.opening_s, name=origin.link_name
            )
            return sender.batch_limit

        try:
            return cast(int, await self._ask(origin, ask, timeout_s, lambda failure: None))
        except Unsent as unsent:
            is_refused = self._state.options.policy.reaction(unsent.failure) is Reaction.RAISE
            if is_refused and unsent.failure.error is not None:
                raise unsent.failure.error from None
            return 0

    async def _ask(
        self, origin: Origin, ask: Request, timeout_s: float, meter: Callable[[Failure | None], None]
    ) -> Any:
        answers: list[Any] = []
        is_unanswered = False

        async def perform(command: Command) -> Reply:
            nonlocal is_unanswered
            if isinstance(command, Pause):
                return await self._pause(command)
            assert isinstance(command, ToPrimary)
            failure: Failure | None = None
            try:
                answers.append(await ask(command))
            except TransportError as error:
                failure = failure_of_transport(error)
                is_unanswered = is_unanswered or failure.outcome_unknown
            meter(failure)
            return Reply(self._clock(), failure)

        self._under_way += 1
        try:
            await self._carry_out(requesting(self._state.pair, origin.sender, timeout_s, self._clock()), perform, None)
        except (ClientClosed, PairedMessagingFactoryError) as ended:
            raise ended.unanswered_by((THE_PRIMARY,) if is_unanswered else ()) from None
        finally:
            self._end_call()
        return answers[-1]

    def _wall_ms(self, at: float | None) -> int | None:
        """Convert a moment of the clock to milliseconds since 1970."""
        return None if at is None else int((time.time() - self._clock() + at) * 1000)


def _ask_outcome(stored: asyncio.Future[int]) -> None:
    """Ask how a write to the spool ended, because its caller may be cancelled (asyncio warns of unread errors)."""
    if not stored.cancelled():
        stored.exception()
