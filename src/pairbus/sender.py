"""The sender for threads: a drop-in for `azure.servicebus.ServiceBusSender`."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self
from uuid import uuid4

from azure.servicebus import ServiceBusClient, ServiceBusMessageBatch

from pairbus import sdk, telemetry
from pairbus.guard import GRACE_S, NEVER
from pairbus.hub import Hub, left_of, order_of, timeout_of
from pairbus.ledger import tallied
from pairbus.links import Link
from pairbus.outgoing import (
    DEFAULT_LIMIT,
    THE_PRIMARY,
    Outgoing,
    PairedMessageBatch,
    as_outgoing,
    batches,
    ids_of,
    new_batch,
    outgoing,
    readily_wrapped,
    straight,
)
from pairbus.pairing.envelope import Away, aliases_alone
from pairbus.pairing.failover import HEALTHY
from pairbus.pairing.options import SEND_TIMEOUT_S
from pairbus.pairing.policy import Failure, Kind, Reaction
from pairbus.pairing.sending import (
    LEAST_S,
    OPENING_S,
    QUICK_PAUSE_S,
    RETRY_PAUSES_S,
    Command,
    Pause,
    Receipt,
    Reply,
    SenderState,
    ToBacklog,
    ToPrimary,
    ToSpool,
    Unsent,
    Where,
    first_timeout_s,
    is_hurried,
    opening_s,
    spool_reserve_s,
    usual_attempt,
    usual_queue,
)
from pairbus.sdk import CAN_BREAK
from pairbus.send_errors import ClientClosed, ScheduleWhileFailedOver
from pairbus.verdicts import line_is_long


class Owner(Protocol):
    """What a sender needs of its client."""

    _hub: Hub
    _primary: ServiceBusClient
    _secondary: ServiceBusClient
    _closing: threading.Event

    def pair(self) -> None: ...

    def _pair_within(self, timeout_s: float) -> float: ...


class PairedSender:
    """Sends to one queue or topic; a drop-in for `azure.servicebus.ServiceBusSender`. Safe to share between threads."""

    def __init__(self, client: Owner, path: str, *, topic: bool, **kwargs: Any) -> None:
        self._client = client
        self._hub = client._hub
        self._entity = self._hub.entity(path)
        self._state = SenderState(self._entity)
        self._counts = self._hub.counters.entity(path)
        self._tally = self._hub.tally(path)
        self._order = order_of(self._hub.options)
        self.client_identifier: str = kwargs.get("client_identifier") or f"SBSender-{uuid4()}"
        kwargs["client_identifier"] = self.client_identifier
        self._home = Link(
            client._primary, self._hub.primary, path, self._hub.options.connect_timeout, topic=topic, **kwargs
        )
        self._away: Link | None = None
        self._aliases = b""
        "What the usual message gets on the way to the backlog; nothing when none is usual: in order, or traced."
        self._closed = False
        self.entity_name = path
        self.fully_qualified_namespace: str = client._primary.fully_qualified_namespace

    def __repr__(self) -> str:
        return self._hub.sender_repr(self._state)

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        for link in (self._home, self._away):
            if link is not None:
                link.retire()

    def _settle(self, deadline: float) -> None:
        """Let sends that are under way end before the SDK's client closes its connections under them."""
        for link in (self._home, self._away):
            if link is not None and link.enter(deadline - time.monotonic()):
                link.leave()

    def _check(self) -> None:
        self._hub.check()
        if self._closed:
            raise ClientClosed(f"the sender of {self.entity_name}")

    # ── sending ──

    def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        """Return when the primary, a backlog queue or the spool has stored it; raise when none did."""
        # Nearly every send goes straight to the primary. Between two of them everything falls out of the processor's
        # caches, so the way is written out here, where others are called: each function and object that is touched
        # costs more than what it does (decision 0014).
        hub, link, entity = self._hub, self._home, self._entity
        straight_s = hub.straight_s
        ready: Any = None
        if timeout is None and straight_s and not self._closed and (hub.spool is None or not hub.waits(entity)):
            ready = message if type(message) is PairedMessageBatch and message.is_small else straight(message)
        if ready is None or entity.state is not HEALTHY or link.sender is None or not CAN_BREAK:
            if ready is None or self._away is None or not self._divert(ready, straight_s):
                self._send(message, ready, timeout)
            return
        now = began = time.monotonic()
        if not link.line.acquire(False):
            straight_s = self._in_turn(ready, began)
            if not straight_s:
                return
            now = time.monotonic()
        sender, guard, failure = link.sender, link.guard, None
        if sender is None:  # since another thread had the line
            link.leave()
            self._send(message, ready, left_of(began))
            return
        try:
            guard.owner, guard.late_at = sender, now + straight_s + GRACE_S  # as `Guard.call` does it
            if guard.watch is None or guard.late_at < guard.watch.looks_at:
                guard.rouse()
            sender.send_messages(ready, timeout=straight_s)
        except Exception as error:
            failure = link.failure(guard.told(error))
        except BaseException:
            link.drop()  # it was interrupted somewhere: what the next one would read there is not its own answer
            raise
        finally:
            guard.late_at, guard.is_late = NEVER, False
            if failure is not None:
                pass  # it keeps its turn
            elif link.is_retired:
                link.leave()
            else:
                link.line.release()
        if failure is not None:
            self._failed_straight(ready, failure, began, straight_s)
            return
        is_batch, tally = type(ready) is PairedMessageBatch, self._tally
        if tally is not None and (now := time.monotonic()) >= tally.until:
            tally.turn(now)
        with self._hub.lock:
            self._counts.sent += ready.count if is_batch else 1
            if tally is not None:
                tally.total += ready.counted if is_batch else tallied(sdk.only_data_size(ready), 1)
        if entity.state is not HEALTHY or entity.busy_since is not None or self._away is not None:
            self._proven()

    def _in_turn(self, ready: Any, began: float) -> float:
        """Stand in line for the primary: what the attempt may take then; 0 when the message went another way."""
        hub, link = self._hub, self._home
        late = self._stand_in_line(link, began + SEND_TIMEOUT_S)
        if late is not None:
            self._send_by_plan(as_outgoing(ready), SEND_TIMEOUT_S, began, late)
            return 0.0
        if hub.straight_s and self._entity.state is HEALTHY and link.sender is not None:
            return first_timeout_s(hub.pair, left_of(began))
        link.leave()
        self._send(ready, ready, left_of(began))
        return 0.0

    def _failed_straight(self, ready: Any, failure: Failure, began: float, had_s: float) -> None:
        """It has the primary's line."""
        going: Outgoing | None = None
        hurried = is_hurried(self._hub.pair, had_s, is_open=True)
        try:
            going, tried = as_outgoing(ready), Reply(time.monotonic(), failure, hurried=hurried)
            going.has_turn = True
            if failure.outcome_unknown:
                going.unanswered(THE_PRIMARY)
            self._hub.meter_send("primary", self.entity_name, going, failure, "application")
            self._send_by_plan(going, SEND_TIMEOUT_S, began, tried)
        finally:
            if going is None:
                self._home.leave()
            else:
                self._give_turn(going)

    def _proven(self) -> None:
        """By a send without a plan: nothing is held against the entity any more."""
        entity = self._entity
        if entity.state is not HEALTHY or entity.busy_since is not None:
            self._hub.proven(entity)
        if self._away is not None:
            self._leave_backlog()

    def _divert(self, ready: Any, straight_s: float) -> bool:
        """Straight to the backlog queue that the sender keeps, as nearly every diverted send goes. False: something
        about it needs a closer look, and nothing was done."""
        hub, link, queue = self._hub, self._away, usual_queue(self._hub.pair, self._state)
        if link is None or link.path != queue or link.sender is None or not self._aliases:
            return False
        batch = readily_wrapped(ready, self.entity_name, self._aliases, link.limits[1])
        if batch is None or not link.line.acquire(False):
            return False
        if self._closed or link.sender is None:  # since another thread had the line
            link.leave()
            return False
        began = time.monotonic()
        try:
            failure = link.send(batch, straight_s)
        finally:
            link.leave()
        if hub.ledger is not None:
            hub.meter_send("secondary", queue, Outgoing(batch, batch.payloads), failure, "failover")
        if failure is None:
            hub.diverted(self._entity, queue, ids_of(ready))
        else:
            going, tried = as_outgoing(ready), Reply(time.monotonic(), failure)
            if failure.outcome_unknown:
                going.unanswered(queue)
            self._send_by_plan(going, SEND_TIMEOUT_S, began, tried, queue)
        return True

    def _send(self, message: Any, ready: Any, timeout: float | None) -> None:
        """A send that is not the usual one. `ready`: what `straight` has made of the message."""
        hub, entity = self._hub, self._entity
        timeout_s = timeout_of(timeout)
        if self._closed or hub.is_closed or hub.lives.faulted:
            self._check()
        going = outgoing(message) if ready is None else as_outgoing(ready)
        if going is None:
            return
        if not hub.is_paired:
            with hub.pairing_for(entity, going):
                timeout_s = self._client._pair_within(timeout_s)
        try:
            self._send_paired(going, timeout_s)
        finally:
            self._give_turn(going)

    def _send_paired(self, going: Outgoing, timeout_s: float) -> None:
        hub, entity, began = self._hub, self._entity, time.monotonic()
        tried: Reply | None = None
        if hub.needs_no_plan(entity):
            tried = self._to_primary(first_timeout_s(hub.pair, timeout_s), going, began + timeout_s)
            if tried is None:
                with hub.lock:
                    self._counts.sent += len(going.messages)
                self._proven()
                return
        elif (first := usual_attempt(hub.pair, self._state, timeout_s)) is not None and not hub.waits(entity):
            tried = self._to_backlog(first, going, began + timeout_s)
            if tried.failure is None and not tried.rerouted:
                return
            self._send_by_plan(going, timeout_s, began, None if tried.rerouted else tried, first.queue)
            return
        self._send_by_plan(going, timeout_s, began, tried)

    def _send_by_plan(
        self, going: Outgoing, timeout_s: float, began: float, tried: Reply | None, tried_queue: str | None = None
    ) -> None:
        hub, entity, deadline = self._hub, self._entity, began + timeout_s
        plan = hub.plan(self._state, timeout_s, began, tried, tried_queue=tried_queue)
        reply: Reply | None = None
        try:
            while not isinstance(step := hub.advance(plan, reply), Receipt):
                if type(step) is not ToPrimary and not (type(step) is Pause and step.seconds <= QUICK_PAUSE_S):
                    self._give_turn(going)
                if not going.has_turn:
                    hub.deliver()  # a listener may want to send
                reply = self._perform(step, going, deadline)
        except Unsent as unsent:
            raise hub.error(unsent, entity, going) from unsent.failure.error
        except ClientClosed as closed:
            raise hub.closed_meanwhile(closed, entity, going) from None
        finally:
            plan.close()
            self._give_turn(going)
            hub.deliver()
        hub.sent(entity, step, going)
        if step.where is Where.PRIMARY and self._away is not None:
            self._leave_backlog()

    def _perform(self, command: Command, going: Outgoing, deadline: float) -> Reply:
        if type(command) is ToPrimary:
            way = self._to_primary(command.timeout_s, going, deadline, fresh=command.fresh, trial=command.trial)
            return way or Reply(time.monotonic())
        if type(command) is ToBacklog:
            return self._to_backlog(command, going, deadline)
        if type(command) is ToSpool:
            entries = going.entries(self.entity_name, self._hub.first_attempt_ms(command.first_attempt_at), self._order)
            return Reply(time.monotonic(), self._hub.to_spool(entries))
        assert type(command) is Pause
        self._pause(command.seconds)
        return Reply(time.monotonic())

    def _pause(self, seconds: float) -> None:
        if self._client._closing.wait(seconds):
            self._check()

    def _to_primary(
        self, timeout_s: float, going: Outgoing, deadline: float, *, fresh: bool = False, trial: bool = False
    ) -> Reply | None:
        """One attempt; None when it was accepted."""
        link, hub, entity = self._home, self._hub, self._entity
        if not going.has_turn and not link.line.acquire(False):
            late = self._stand_in_line(link, deadline)
            if late is not None:
                return late
            # Of what the line has left, the backlog needs its part.
            timeout_s = min(timeout_s, first_timeout_s(hub.pair, deadline - time.monotonic()))
        going.has_turn = True
        failure: Failure | None = None
        try:
            if entity.state is not HEALTHY and not trial and not hub.goes_home(entity):
                return Reply(time.monotonic(), rerouted=True)
            if fresh:
                link.drop()
            left_s = deadline - time.monotonic()
            is_open = link.sender is not None and sdk.is_open(link.sender)
            timeout_s = timeout_s if is_open else max(timeout_s, opening_s(hub.pair, left_s))
            timeout_s = max(min(timeout_s, left_s), 0.001)
            failure = link.send(going.given, timeout_s)
        finally:
            if failure is None:
                self._give_turn(going)
        if hub.ledger is not None:
            hub.meter_send("primary", self.entity_name, going, failure, "application")
        if failure is not None:
            if failure.outcome_unknown:
                going.unanswered(THE_PRIMARY)
            return Reply(time.monotonic(), failure, hurried=is_hurried(hub.pair, timeout_s, is_open=is_open))
        if not going.is_small:
            hub.watch_size(entity, going, link.limits[0])
        return None

    def _to_backlog(self, command: ToBacklog, going: Outgoing, deadline: float) -> Reply:
        hub = self._hub
        link = self._backlog_link(command.queue)
        if not link.line.acquire(False):
            late = self._stand_in_line(link, deadline)
            if late is not None:
                return late
        elif self._closed:
            link.leave()
            self._check()
        try:
            if not hub.pair.rotation.has(command.queue):
                return Reply(time.monotonic(), rerouted=True)
            if command.fresh:
                link.drop()
            now = time.monotonic()
            until = min(deadline, now + command.timeout_s)
            is_open = link.sender is not None and sdk.is_open(link.sender)
            hurried = is_hurried(hub.pair, until - now, is_open=is_open)
            if telemetry.is_traced():
                with telemetry.span("divert", {telemetry.DESTINATION: self.entity_name}) as span:
                    failure = self._send_wrapped(link, command, going, until)
                    if failure is not None:
                        telemetry.failed(span, failure.text, failure.error)
            else:
                failure = self._send_wrapped(link, command, going, until)
        finally:
            link.leave()
            hub.stored_away(self._entity, going, outcome_unknown=command.first_attempt_at is not None)
        return Reply(time.monotonic(), failure, hurried=hurried)

    def _send_wrapped(self, link: Link, command: ToBacklog, going: Outgoing, until: float) -> Failure | None:
        hub = self._hub
        first_ms = hub.first_attempt_ms(command.first_attempt_at)
        messages = going.wrapped(self.entity_name, first_ms, self._order)
        try:
            parts = batches(messages, link.limits[1] or DEFAULT_LIMIT)
        except sdk.ERRORS as error:
            return sdk.failure_of(error, sending=False)
        for what, count in parts:
            failure = link.send(what, max(until - time.monotonic(), 0.001))
            if hub.ledger is not None:
                hub.meter_send("secondary", command.queue, Outgoing(what, messages[:count]), failure, "failover")
            if failure is not None:
                if failure.outcome_unknown:
                    going.unanswered(command.queue, count)
                return failure
            going.stored(count, command.queue)
            del messages[:count]
        return None

    def _backlog_link(self, queue: str) -> Link:
        link = self._away
        if link is None or link.path != queue:
            self._leave_backlog()
            hub = self._hub
            link = Link(self._client._secondary, hub.secondary, queue, hub.options.connect_timeout, topic=False)
            self._away = link
            is_usual = self._order is None and not telemetry.is_traced() and not sdk.is_traced()
            self._aliases = aliases_alone(Away(self.entity_name)) if is_usual else b""
        return link

    def _leave_backlog(self) -> None:
        """Back home, or to another queue: this connection to the secondary is not needed any more."""
        link, self._away = self._away, None
        if link is not None:
            link.retire()

    def _stand_in_line(self, link: Link, deadline: float) -> Reply | None:
        """None when it is our turn; the reply when that did not come in time."""
        left_s = deadline - spool_reserve_s(self._hub.pair) - time.monotonic()
        has_turn = link.enter(left_s)
        if has_turn and self._closed:
            link.leave()
            self._check()
        if has_turn and deadline - time.monotonic() >= LEAST_S:
            return None
        if has_turn:
            link.leave()
        return Reply(time.monotonic(), line_is_long(self.entity_name, left_s), waited=True)

    def _give_turn(self, going: Outgoing) -> None:
        if going.has_turn:
            going.has_turn = False
            self._home.leave()

    # ── the rest of the SDK's sender ──

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Also while the primary is away: then with the limit that its link had, or the Standard tier's."""
        self._check()
        if not self._hub.is_paired:
            self._client.pair()
        if not self._home.limits[1] and self._hub.goes_home(self._entity):
            self._learn_limits()
        wrapped_for = None if self._hub.goes_home(self._entity) else self.entity_name
        return new_batch(self._home.limits[1], max_size_in_bytes, wrapped_for=wrapped_for)

    def _learn_limits(self) -> None:
        """From the primary's link, which is opened for it. When it cannot be, the limit is the usual one; silence
        counts as that of a send would, so that the batch need not wait for it once more."""
        hub, link, timeout_s = self._hub, self._home, self._hub.options.attempt_timeout
        if self._stand_in_line(link, time.monotonic() + timeout_s) is not None:
            return
        try:
            if link.limits[1] or not hub.goes_home(self._entity):
                return
            failure = (link.call(lambda sender, left_s: sender.create_message_batch(), timeout_s, sending=False))[1]
        finally:
            link.leave()
        if failure is not None and failure.kind is Kind.TIMEOUT:
            hub.managed(self._entity, failure)

    def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> list[int]:
        """On the primary only: a backlog queue has no numbers to cancel by."""
        timeout_s = self._check_home(timeout)
        going = outgoing(messages)
        if going is None:
            return []
        return self._manage(  # type: ignore[no-any-return]
            lambda sender, left_s: sender.schedule_messages(going.given, schedule_time_utc, timeout=left_s),
            timeout_s,
            going,
        )

    def cancel_scheduled_messages(self, sequence_numbers: int | list[int], *, timeout: float | None = None) -> None:
        timeout_s = self._check_home(timeout)
        self._manage(
            lambda sender, left_s: sender.cancel_scheduled_messages(sequence_numbers, timeout=left_s), timeout_s
        )

    def _check_home(self, timeout: float | None) -> float:
        """What is left of the time-out."""
        timeout_s = timeout_of(timeout)
        self._check()
        if not self._hub.is_paired:
            timeout_s = self._client._pair_within(timeout_s)
        if not self._hub.goes_home(self._entity):
            raise ScheduleWhileFailedOver(self.entity_name)
        return timeout_s

    def _manage(self, use: Any, timeout_s: float, going: Outgoing | None = None) -> Any:
        """A request to the primary, tried as often as a send; a failure counts as a send's does."""
        deadline = time.monotonic() + timeout_s
        hub, entity, unknown = self._hub, self._entity, False
        late = self._stand_in_line(self._home, deadline)
        if late is not None and late.failure is not None:
            raise hub.waited(self.entity_name, going, late.failure)
        try:
            if not hub.goes_home(entity):
                raise ScheduleWhileFailedOver(self.entity_name)
            for pause_s in (*RETRY_PAUSES_S, None):
                began = time.monotonic()
                attempt_s = max(min(deadline - began, hub.options.attempt_timeout), 0.001)
                result, failure = self._home.call(use, attempt_s)
                hub.meter_request(self.entity_name, going, failure)
                if failure is None:
                    hub.managed(entity, None)
                    return result
                unknown = unknown or failure.outcome_unknown
                if failure.kind is not Kind.COMMUNICATION or pause_s is None:
                    break
                left_s = deadline - time.monotonic()
                if left_s <= pause_s:
                    break
                self._pause(max(began + pause_s - time.monotonic(), 0.0))
                self._home.drop()
        finally:
            self._home.leave()
        assert failure is not None and failure.error is not None
        if failure.kind is Kind.TIMEOUT and attempt_s < min(hub.options.attempt_timeout, OPENING_S):
            raise failure.error  # it had too little time to say anything about the entity
        if hub.managed(entity, failure) is Reaction.COUNT and not hub.goes_home(entity):
            raise ScheduleWhileFailedOver(self.entity_name, outcome_unknown=unknown) from failure.error
        raise failure.error

    def _after_fork(self) -> None:
        self._home.abandon()
        self._away = None
