"""Calls: each send is carried out as its plan says, attempt by attempt, until a place has stored the messages.

The plan (`pairing/plan.py`) decides; this file performs its commands on the primary, a backlog queue and the spool.
All code here runs in the engine's event loop, so no locks are needed: decisions are taken between two awaits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
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
from pairbus.client.outgoing import BATCH_LIMIT, THE_SPOOL, Outgoing, parcels
from pairbus.client.results import Origin, Results, ended_meanwhile, error_of
from pairbus.client.state import PairState
from pairbus.errors import ConfigError, SpoolError
from pairbus.pairing.commands import (
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
)
from pairbus.pairing.plan import SenderState, requesting, sending
from pairbus.pairing.policy import Failure, Kind, Reaction
from pairbus.pairing.side_states import PairSide
from pairbus.sdk.failures import failure_of_transport
from pairbus.spool.lanes import queueing
from pairbus.telemetry import operations
from pairbus.transport import Carrier, TransportError
from pairbus.transport.threads import outcome_of

logger = logging.getLogger("pairbus")

Request = Callable[[ToPrimary], Awaitable[Any]]
"Function that makes a request to the primary, within the limits of an attempt."


class Sends:
    """The calls of one client, carried out. `over` is set when the client is closed or faulted: pauses end then."""

    def __init__(
        self,
        state: PairState,
        carriers: Mapping[PairSide, Carrier],
        over: asyncio.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._carriers = carriers
        self._primary = carriers["primary"]
        self._over = over
        self._clock = clock
        self.results = Results(state, self._primary, clock)
        self._under_way = 0
        "Calls that have not ended."
        self._idle: asyncio.Event | None = None
        "Event that is set when the last call has ended; made by the call that waits for that."

    # ── a send ──

    @operations.send
    async def send(self, origin: Origin, outgoing: Outgoing, timeout_s: float) -> Receipt:
        """Send; return where the messages are stored (primary, backlog queue or spool), raise when nowhere."""
        self._under_way += 1
        try:
            plan = self._plan(origin.sender, timeout_s)
            try:
                command = next(plan)
                while True:
                    self._check(outgoing)
                    command = plan.send(await self._perform(origin, outgoing, command))
            except StopIteration as end:
                receipt = cast(Receipt, end.value)
            finally:
                plan.close()
                if self._state.events.outbox:
                    self._state.events.deliver()
            self.results.stored(origin, outgoing, receipt)
            return receipt
        except Unsent as unsent:
            self.results.failed(origin, len(outgoing), unsent.failure.kind)
            raise error_of(unsent, origin.path, outgoing, ordered=self._state.options.ordered) from unsent.failure.error
        except (ClientClosed, PairedMessagingFactoryError) as ended:
            self.results.failed(origin, len(outgoing), Kind.COMMUNICATION)
            raise ended_meanwhile(ended, origin.path, outgoing) from None
        except Exception as error:
            if not tells_outcome(error):  # a wrong setting, before anything was sent, or a bug of ours
                tell_outcome(
                    error, outgoing.may_be_in or (() if isinstance(error, ConfigError) else self._state.places)
                )
            raise
        finally:
            self._end_call()

    def _plan(self, sender: SenderState, timeout_s: float) -> Plan:
        state, now = self._state, self._clock()
        if state.waits(sender.entity):
            waits = partial(state.waits, sender.entity)
            return queueing(state.pair, sender, timeout_s, now, state.inflow, waits)
        return sending(state.pair, sender, timeout_s, now)

    def _check(self, outgoing: Outgoing | None) -> None:
        """Deliver events, and raise when the call or the client has ended, before a command is performed."""
        state = self._state
        if state.events.outbox:
            state.events.deliver()
        if outgoing is not None and outgoing.is_cancelled:
            raise asyncio.CancelledError
        state.check()

    def _perform(self, origin: Origin, outgoing: Outgoing, command: Command) -> Awaitable[Reply]:
        if isinstance(command, ToPrimary):
            return self._to_primary(origin, outgoing, command)
        if isinstance(command, ToBacklog):
            return self._to_backlog(origin, outgoing, command)
        if isinstance(command, ToSpool):
            return self._to_spool(origin, outgoing, command)
        return self._pause(command)

    async def _pause(self, command: Pause) -> Reply:
        with suppress(TimeoutError):
            async with asyncio.timeout(command.seconds):
                await self._over.wait()
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

    async def _to_primary(self, origin: Origin, outgoing: Outgoing, attempt: ToPrimary) -> Reply:
        encoded = outgoing.for_primary()
        try:
            await _sent(self._primary, origin.path, encoded, attempt, origin, origin.link_name)
        except TransportError as error:
            failure = failure_of_transport(error)
        else:
            self.results.meter_primary(origin, outgoing)
            if len(encoded[0]) > BATCH_LIMIT // 2:
                self.results.watch_size(origin, outgoing)
            return Reply(self._clock())
        self._state.meters.send("primary", origin.path, outgoing.payloads, failure, "application")
        if failure.outcome_unknown:
            outgoing.unanswered(self._state.places[0])
        return Reply(self._clock(), failure)

    @operations.divert
    async def _to_backlog(self, origin: Origin, outgoing: Outgoing, attempt: ToBacklog) -> Reply:
        """Send the rest as wrapped copies; messages that the queue stored are taken off and told, after errors too."""
        secondary, queue, first_at = self._carriers["secondary"], attempt.queue, attempt.first_attempt_at
        deadline = self._clock() + attempt.timeout_s
        wrapped = outgoing.wrapped(origin.path, self._wall_ms(first_at), origin.order)
        failure: Failure | None = None
        try:
            if max(map(len, wrapped)) > BATCH_LIMIT and not secondary.batch_limit(queue):
                failure = await _learn_limits(secondary, queue, attempt)
                if failure is not None:
                    return Reply(self._clock(), failure)
                attempt = attempt._replace(timeout_s=max(deadline - self._clock(), 0.001), fresh=False)
            parts = parcels(wrapped, secondary.batch_limit(queue), secondary.message_limit(queue))
            for payload, message_format, count in parts:
                try:
                    await _sent(secondary, queue, (payload, message_format), attempt, origin)
                except TransportError as error:
                    failure = failure_of_transport(error)
                if len(parts) > 1:  # a later part goes on the connection that took the first, within the same time
                    attempt = attempt._replace(timeout_s=max(deadline - self._clock(), 0.001), fresh=False)
                self._state.meters.send("secondary", queue, wrapped[:count], failure, "failover")
                if failure is not None:
                    if failure.outcome_unknown:
                        outgoing.unanswered(queue, count)
                    break
                outgoing.stored(count, queue)
                del wrapped[:count]
        except MessageSizeExceededError as error:
            failure = Failure(Kind.TOO_LARGE, str(error), error=error)
        finally:
            self.results.diverted(origin, outgoing, outcome_unknown=first_at is not None)
        return Reply(self._clock(), failure)

    async def _to_spool(self, origin: Origin, outgoing: Outgoing, command: ToSpool) -> Reply:
        return Reply(self._clock(), await self._spool(origin, outgoing, command))

    async def _spool(self, origin: Origin, outgoing: Outgoing, command: ToSpool) -> Failure | None:
        """Return when the disk has the messages. A write that has begun when the time is over may store them later."""
        state, spool = self._state, self._state.spool.open_spool
        entries = outgoing.entries(origin.path, self._wall_ms(command.first_attempt_at), origin.order)
        try:
            if spool is None:
                is_opening = state.spool.is_opening
                why = "The spool's disk has not answered yet" if is_opening else "The spool was closed with the pairing"
                raise SpoolError(f"{why}. This was not stored.")
            state.inflow.joined(origin.path, len(entries), self._clock())
            writing = state.spool.disk.submit(spool.append, entries)
            stored = outcome_of(writing)
            try:
                # A write that has begun goes on when the caller is cancelled; `asyncio.shield` would log its errors.
                await asyncio.wait([stored], timeout=command.timeout_s)
            finally:
                is_dropped = writing.cancel()  # it has not begun, because the disk hangs, and is not made any more
            if is_dropped or not writing.done():
                if not is_dropped:
                    outgoing.unanswered(THE_SPOOL)
                text = f"the spool's disk did not answer for {command.timeout_s:.1f} s"
                return Failure(Kind.TIMEOUT, text, outcome_unknown=not is_dropped)
            writing.result()
        except SpoolError as error:
            return Failure(Kind.INTERNAL, str(error), False, error)
        return None

    # ── requests ──

    @operations.request
    async def request(self, origin: Origin, outgoing: Outgoing | None, ask: Request, timeout_s: float) -> Any:
        """Make a request to the primary, with the failure table of a send; ScheduleWhileFailedOver when it is away."""

        try:
            return await self._ask(origin, ask, timeout_s, partial(self._state.meters.request, origin.path, outgoing))
        except Unsent as unsent:
            cause, places = unsent.failure.error, self._state.places[:1] if unsent.outcome_unknown else ()
            if unsent.where is Where.BACKLOG:
                raise ScheduleWhileFailedOver(origin.path, places) from cause
            error = cause or OperationTimeoutError(message=unsent.failure.text)
            tell_outcome(error, places)
            raise error from cause
        except Exception as error:
            if not tells_outcome(error):  # a wrong setting, before anything was asked, or a bug of ours
                tell_outcome(error, () if isinstance(error, ConfigError) else self._state.places[:1])
            raise

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
        state, is_unanswered = self._state, False
        answer: Any = None
        plan = requesting(state.pair, origin.sender, timeout_s, self._clock())
        self._under_way += 1
        try:
            command = next(plan)
            while True:
                self._check(None)
                if isinstance(command, Pause):
                    command = plan.send(await self._pause(command))
                    continue
                assert isinstance(command, ToPrimary)
                failure: Failure | None = None
                try:
                    answer = await ask(command)
                except TransportError as error:
                    failure = failure_of_transport(error)
                    is_unanswered = is_unanswered or failure.outcome_unknown
                meter(failure)
                command = plan.send(Reply(self._clock(), failure))
        except StopIteration:
            return answer
        except (ClientClosed, PairedMessagingFactoryError) as ended:
            raise ended.unanswered_by(state.places[:1] if is_unanswered else ()) from None
        finally:
            plan.close()
            state.events.deliver()
            self._end_call()

    def _wall_ms(self, at: float | None) -> int | None:
        """Convert a moment of the clock to milliseconds since 1970."""
        return None if at is None else int((time.time() - self._clock() + at) * 1000)


def _sent(
    carrier: Carrier, path: str, encoded: tuple[bytes, int], attempt: Attempt, by: Origin, link_name: str | None = None
) -> Awaitable[None]:
    """Return the send of one attempt, to be awaited: `encoded` is a payload with its message format."""
    payload, message_format = encoded
    return carrier.send(
        path,
        payload,
        message_format=message_format,
        timeout_s=attempt.timeout_s,
        silence_s=attempt.silence_s,
        opening_s=attempt.opening_s,
        name=link_name,
        fresh=attempt.fresh,
        by=by,
    )


async def _learn_limits(secondary: Carrier, queue: str, attempt: ToBacklog) -> Failure | None:
    """Open the link to a backlog queue, which tells the sizes that the queue takes."""
    try:
        await secondary.sender(queue, attempt.timeout_s, opening_s=attempt.opening_s, fresh=attempt.fresh)
    except TransportError as error:
        return failure_of_transport(error)
    return None
