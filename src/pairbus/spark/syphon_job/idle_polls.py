"""Polls idle queues in the driver's source runner: an arriving message starts a round.

A poll receives one message, gives it back at once as if it had never been delivered, and reports it; the tasks of the
round receive it again. So an idle queue costs one receive for each poll of 15 minutes, and no message is locked
meanwhile. Queues with a reported message, or that are known to have more, are not polled: no message is taken away from
the tasks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable

from pairbus.ledger.rows import MeterKind
from pairbus.spark.connections import Borrowed, run
from pairbus.spark.syphon_job.job import SyphonJob
from pairbus.spark.syphon_job.rounds import PAUSE_S, UNHEALTHY_MAX_S, GrowingPause
from pairbus.spark.syphon_job.task_pumps import ledger_of
from pairbus.transport import Carrier, ReceivedMessage, Receiver, TransportError

END_S = 0.5  # for each answer of a peer that may be silent
LINK_LIFE_MIN_S = 1.0  # a link that the peer closes sooner was not idle

logger = logging.getLogger("pairbus.spark")


class IdlePolls:
    """Keeps a long poll on each of some queues, on the event loop of this process."""

    def __init__(self, job: SyphonJob) -> None:
        self._job = job
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._arrived: set[str] = set()
        self._signal = threading.Event()

    def keep(self, queues: Iterable[str]) -> None:
        """Poll these queues and no others, except those with a reported message."""
        names = set(queues)
        if names - self._arrived != self._polls.keys():
            run(self._keep(names))

    def arrived(self, wait_s: float) -> set[str]:
        """Return the queues in which messages have arrived, as soon as there are any; none after `wait_s`."""
        self._signal.wait(wait_s)
        return set(self._arrived)

    def forget(self, queues: Iterable[str]) -> None:
        """Forget arrivals: a round is made for them."""
        self._signal.clear()
        self._arrived -= set(queues)
        if self._arrived:
            self._signal.set()

    def end(self) -> None:
        run(self._keep(set()))

    # ── on the event loop ──

    async def _keep(self, names: set[str]) -> None:
        self.forget(self._arrived - names)
        ending = [self._polls.pop(queue) for queue in self._polls.keys() - names]
        for poll in ending:
            poll.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for queue in names - self._polls.keys() - self._arrived:
            self._polls[queue] = asyncio.create_task(self._poll(queue))

    async def _poll(self, queue: str) -> None:
        """Poll again and again until a message arrives. A queue that cannot be polled is tried more and more rarely."""
        pause = GrowingPause(PAUSE_S, UNHEALTHY_MAX_S)
        ends, last_error = None, ""
        async with Borrowed(self._job.secondary, self._job.ca_file) as secondary:
            while True:
                began = time.monotonic()
                ends = ends or began + self._job.settings.poll_s
                try:
                    if await self._is_something_there(secondary, queue, ends):
                        break
                except TransportError as error:
                    if time.monotonic() - began >= LINK_LIFE_MIN_S:  # the rest of this poll is no other receive
                        pause.reset()
                        continue
                    pause_s = pause.next()
                    if str(error) != last_error:
                        logger.warning("%s cannot be polled, again in %.0f s: %s", queue, pause_s, error)
                    last_error = str(error)
                    await asyncio.sleep(pause_s)
                else:
                    pause.reset()
                    ends = None
        self._arrived.add(queue)
        self._polls.pop(queue, None)
        self._signal.set()

    async def _is_something_there(self, secondary: Carrier, queue: str, until: float) -> bool:
        """Make one poll, or the rest of a poll that has lost its link."""
        receiver = await secondary.receiver(queue, credit=1, sub_queue=self._job.sub_queue)
        try:
            receiving = asyncio.create_task(receiver.receive(1, max(until - time.monotonic(), 0.0)))
            await asyncio.sleep(0)
            receiver.credit = 0  # no second message may follow
            try:
                messages = await receiving
            except asyncio.CancelledError:
                if receiving.done() and not receiving.cancelled() and receiving.exception() is None:
                    await self._give_back(receiver, receiving.result(), secondary, queue)
                raise
            if not messages:
                await receiver.pause(END_S)
                self._meter(secondary, queue, "empty receive", receiver.take_empty(), 0)
                return False
            self._meter(secondary, queue, "receive", 1, len(messages[0].payload))
            await self._give_back(receiver, messages, secondary, queue)
            return True
        finally:
            await receiver.close(END_S)

    async def _give_back(
        self, receiver: Receiver, messages: list[ReceivedMessage], secondary: Carrier, queue: str
    ) -> None:
        """Release the received message; if that fails, its lock expires, and its round finds the message then."""
        try:
            await receiver.release(messages, timeout_s=END_S)
        except TransportError as error:
            logger.debug("%s: a message comes back when its lock runs out: %s", queue, error)
        self._meter(secondary, queue, "complete", len(messages), 0)

    def _meter(self, secondary: Carrier, queue: str, kind: MeterKind, count: int, size_bytes: int) -> None:
        if self._job.ledger is not None and count:
            ledger = ledger_of(self._job.ledger)
            ledger.meter("secondary", secondary.endpoint.authority, queue, kind, size_bytes, count, cause="syphon")
