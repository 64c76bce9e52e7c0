"""`PairedServiceBusClient` and `PairedSender` for threads: drop-ins for those of `azure.servicebus`.

Faces on an engine that runs in a thread: they hand it work and wait, and decide nothing.
"""

from __future__ import annotations

import threading
import weakref
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from azure.servicebus import ServiceBusMessageBatch

from pairbus import sdk
from pairbus.client.engine import Engine
from pairbus.client.face import PairedClientFace, PairedSenderFace, sender_keywords, timeout_of
from pairbus.client.outgoing import Outgoing, new_batch, scheduled
from pairbus.client.sides import Side
from pairbus.client.thread import EngineThread, ListenerThread, Work
from pairbus.pairing.failover import State
from pairbus.pairing.life import Side as SideName
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions

LISTENER_CLOSE_S = 2.0  # what closing a client grants its listener for the last events


class PairedServiceBusClient(PairedClientFace):
    """Sends to the primary, or to backlog queues of the secondary while the primary is away; receives from the primary.

    Safe to share between threads. Made by `from_connection_strings` or `from_credential`, everything that it needs is
    made for it; the constructor takes clients of the SDK, which it then owns and closes.
    """

    AIO = False

    def _set_up(
        self, primary: Side, client: Any, secondary: Side, options: SendAvailabilityPairedNamespaceOptions
    ) -> None:
        super()._set_up(primary, client, secondary, options)
        self._thread: EngineThread | None = None
        self._starting = threading.Lock()
        self._listen()

    def _listen(self) -> None:
        listener = self._state.options.on_event
        self._listener = None if listener is None else ListenerThread(listener)
        if self._listener is not None:
            self._state.events.listener = self._listener.put

    def __enter__(self) -> Self:
        self.pair()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Work, *, going: Outgoing | None = None, timeout_s: float | None = None) -> Any:
        thread = self._thread
        if thread is None or not thread.is_usable:
            thread = self._started()
        return thread.run(work, going=going, timeout_s=timeout_s)

    def _started(self) -> EngineThread:
        """Start the engine at the first call, in a forked child too."""
        with self._starting:
            if self._thread is None or not self._thread.is_usable:
                sdk.keep(self._thread)
                self._state.after_loop()
                self._thread = EngineThread(self._state)
                weakref.finalize(self, self._thread.abandon).atexit = False
            return self._thread

    # ── pairing ──

    def pair(self) -> None:
        """Find or create the backlog queues. Nothing is sent before; entering `with`, or the first send, does it."""
        self._run(Engine.pair)

    def clear_pairing(self) -> None:
        """Forget all state and timers, and be a plain client of the primary from now on. The spool is given back."""
        self._run(Engine.clear_pairing)

    def force_failover(self, entity: str) -> None:
        """Send this entity's messages to the backlog until `force_healthy` is called."""
        self._run(lambda engine: engine.force(entity, over=True))

    def force_healthy(self, entity: str) -> None:
        """Send this entity's messages to the primary again, whatever is known about it."""
        self._run(lambda engine: engine.force(entity, over=False))

    def states(self) -> dict[str, State]:
        """Return the state of every entity that this client has sent to."""
        if self._thread is None or not self._thread.is_usable:
            return super().states()
        states: dict[str, State] = self._run(Engine.states)
        return states

    def fault(self, side: SideName = "primary") -> None:
        """Declare one side unusable. Where the syphon runs, the other follows."""
        self._fault(side, "fault() was called")

    def _fault(self, side: SideName, reason: str) -> None:
        self._run(lambda engine: engine.declare_fault(side, reason))
        if self._state.is_faulted:
            for receiver in list(self._receivers):
                sdk.end_receiver(receiver)

    def _closed_under_us(self, side: SideName) -> None:
        if not self._state.is_closed:
            self._fault(side, f"the client of the {side} was closed by somebody else")

    def close(self) -> None:
        """Stop pings and pumps (they get 5 seconds to finish what they hold) and close both sides."""
        with self._starting:
            if self._state.is_closed:
                return
            self._state.is_closed = True
        self._run(Engine.close)
        assert self._thread is not None
        self._thread.stop()
        self._primary.close()
        self._secondary.close()
        if self._listener is not None:
            self._listener.flush(LISTENER_CLOSE_S)
        self._state.release()

    # ── senders ──

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> PairedSender:
        self._state.check()
        return PairedSender(self, queue_name, **sender_keywords(kwargs))

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> PairedSender:
        self._state.check()
        return PairedSender(self, topic_name, **sender_keywords(kwargs))

    def _after_fork(self) -> None:
        sdk.keep(self._thread)
        self._thread = None
        self._starting = threading.Lock()
        super()._after_fork()
        self._listen()


class PairedSender(PairedSenderFace):
    """Sends to one queue or topic. Any number of threads may share it: their sends are pipelined."""

    def __init__(self, client: PairedServiceBusClient, path: str, client_identifier: str | None = None) -> None:
        super().__init__(client, path, client_identifier)
        self._client = client

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._origin.link_name is not None and not self._state.is_closed:
                self._client._run(lambda engine: engine.forget_link(self._origin))

    def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        """Return when the primary, a backlog queue or the spool has stored it; raise when none did."""
        timeout_s = timeout_of(timeout)
        self._check()
        going = self._outgoing(message)
        if going is None:
            return
        with sdk.span(self, sdk.SEND, going.links):
            self._client._run(
                lambda engine: engine.send(self._origin, going, timeout_s), going=going, timeout_s=timeout_s
            )

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Make a batch, also while the primary is away: then with the limit that its link had."""
        self._check()
        limit = self._client._run(lambda engine: engine.batch_limit(self._origin))
        return new_batch(limit, max_size_in_bytes, sdk.attributes(self.fully_qualified_namespace, self.entity_name))

    def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> list[int]:
        """Schedule messages on the primary only: a backlog queue has no sequence numbers to cancel by."""
        timeout_s = timeout_of(timeout)
        self._check()
        entries, going = scheduled(messages, schedule_time_utc, self._traced())
        if going is None:
            return []
        with sdk.span(self, sdk.SCHEDULE, going.links):
            numbers: list[int] = self._client._run(
                lambda engine: engine.schedule(self._origin, going, entries, timeout_s),
                going=going,
                timeout_s=timeout_s,
            )
        return numbers

    def cancel_scheduled_messages(self, sequence_numbers: int | list[int], *, timeout: float | None = None) -> None:
        timeout_s = timeout_of(timeout)
        self._check()
        numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else list(sequence_numbers)
        if numbers:
            self._client._run(lambda engine: engine.cancel(self._origin, numbers, timeout_s), timeout_s=timeout_s)
