"""Clients and senders for threads: drop-ins for those of `azure.servicebus`, with a pair and without one.

They are faces of an engine that runs in a thread: they give it work and wait, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Self, cast

from azure.servicebus import ServiceBusClient as SdkClient
from azure.servicebus import ServiceBusMessageBatch

from pairbus.client.background import PUMP_GRACE_S
from pairbus.client.engine import Engine
from pairbus.client.engine_thread import T, Work
from pairbus.client.errors import tell_outcome, tells_outcome
from pairbus.client.face import ClientFace, Job, SenderFace, SenderT
from pairbus.client.life import SyncLife
from pairbus.client.outgoing import Outgoing
from pairbus.client.paired import PairedClientFace
from pairbus.client.processing.message import ProcessorMessage
from pairbus.client.processing.sync import ServiceBusProcessor
from pairbus.client.receiving.options import ReceiverOptions
from pairbus.client.receiving.sync import ServiceBusReceiver
from pairbus.client.single import SingleClientFace
from pairbus.pairing.failover import State
from pairbus.pairing.side_states import PairSide


class SyncClient(ClientFace[SenderT, ServiceBusReceiver]):
    """A client for threads, of a pair or of one namespace."""

    AIO = False
    _life: SyncLife

    def _new_receiver(self, options: ReceiverOptions) -> ServiceBusReceiver:
        return ServiceBusReceiver(self, options)

    def _new_life(self) -> SyncLife:
        self._life = SyncLife(self._state)
        return self._life

    def __enter__(self) -> Self:
        self._state.check()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, work: Work[T], *, outgoing: Outgoing | None = None, timeout_s: float | None = None) -> T:
        return self._life.engine().run(work, outgoing=outgoing, timeout_s=timeout_s)

    def states(self) -> dict[str, State]:
        """Return the state of every entity that this client has sent to."""
        if not self._life.has_engine:
            return super().states()
        return self._run(lambda engine: engine.call(engine.state.states))

    def _fault(self, side: PairSide, reason: str) -> None:
        if self._state.is_closed:
            return
        self._run(lambda engine: engine.call(partial(engine.fault, side, reason)))

    # ── processors ──

    def get_queue_processor(
        self, queue_name: str, handler: Callable[[ProcessorMessage], object], **options: Any
    ) -> ServiceBusProcessor:
        """Return a processor, which calls `handler` for each message of the primary's queue.

        docs/receiving.md has the options.
        """
        self._state.check()
        return ServiceBusProcessor(self, (queue_name,), handler, options)

    def get_subscription_processor(
        self, topic_name: str, subscription_name: str, handler: Callable[[ProcessorMessage], object], **options: Any
    ) -> ServiceBusProcessor:
        """Return a processor, which calls `handler` for each message of the primary's subscription."""
        self._state.check()
        return ServiceBusProcessor(self, (topic_name, subscription_name), handler, options)

    def close(self) -> None:
        """Stop what is under way (it gets 5 seconds to end) and close all connections.

        When the call is interrupted, a later one does the rest. A call beside another one returns at once.
        """
        for processor in list(self._processors):
            processor.stop(timeout=PUMP_GRACE_S)
        self._life.close(self._close_sides)

    def _close_sides(self) -> None:
        for side in self._state.sides.values():
            cast(SdkClient, side.client).close()


class ServiceBusClient(SingleClientFace["ServiceBusSender", ServiceBusReceiver], SyncClient["ServiceBusSender"]):
    """A client of one namespace: a drop-in for that of `azure.servicebus`, on the engine of the paired client.

    Threads may share it.
    """

    def _new_sender(self, path: str, client_identifier: str | None) -> ServiceBusSender:
        return ServiceBusSender(self, path, client_identifier)


class PairedServiceBusClient(PairedClientFace["PairedSender", ServiceBusReceiver], SyncClient["PairedSender"]):
    """A client that sends to the primary, or to backlog queues of the secondary while the primary is away.

    It receives from the primary. Threads may share it. `from_connection_strings` and `from_credential` make the clients
    of the SDK too; the constructor takes clients of the SDK, which it then owns and closes.
    """

    def __enter__(self) -> Self:
        self.pair()
        return self

    def pair(self) -> None:
        """Find or create the backlog queues, before the first send. `with`, or the first send, does it as well."""
        self._run(Engine.pair)

    def clear_pairing(self) -> None:
        """Forget all state and timers, and be a plain client of the primary from now on. The spool is given back."""
        self._run(Engine.clear_pairing)

    def _force(self, entity: str, *, over: bool) -> None:
        self._run(lambda engine: engine.call(partial(engine.state.force, entity, over=over)))

    def _new_sender(self, path: str, client_identifier: str | None) -> PairedSender:
        return PairedSender(self, path, client_identifier)


class ServiceBusSender(SenderFace):
    """A sender to one queue or topic. Any number of threads may share it: their sends are pipelined."""

    def __init__(self, client: SyncClient[Any], path: str, client_identifier: str | None = None) -> None:
        super().__init__(client, path, client_identifier)
        self._client = client

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _do(self, begin: Callable[..., Job | None], *arguments: Any) -> Any:
        """Make a job and do it."""
        try:
            job = begin(*arguments)
            if job is None:
                return None
            with job.span:
                return self._client._run(job.work, outgoing=job.outgoing, timeout_s=job.timeout_s)
        except Exception as error:
            if not tells_outcome(error):  # it was raised before the first attempt
                tell_outcome(error)
            raise

    def close(self) -> None:
        self._do(self._closing)

    def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        """Send; return when the message is stored, raise when it is not: `outcome_unknown` tells whether it may be."""
        self._do(self._sending, message, timeout)

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Make a batch, also while the namespace is away: then with the limit that its link had."""
        return self._new_batch(self._do(self._asking_limit), max_size_in_bytes)

    def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> list[int]:
        """Schedule messages, on the primary only: a backlog queue has no sequence numbers to cancel by."""
        return self._do(self._scheduling, messages, schedule_time_utc, timeout) or []

    def cancel_scheduled_messages(self, sequence_numbers: int | list[int], *, timeout: float | None = None) -> None:
        self._do(self._cancelling, sequence_numbers, timeout)


class PairedSender(ServiceBusSender):
    """A sender of a paired client: a message is stored in the primary, in a backlog queue or in the spool."""
