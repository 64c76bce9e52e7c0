"""Requests and answers over a pair of links, for `$cbs` and `$management`: matched by correlation id."""

from __future__ import annotations

import asyncio
import itertools
import math
import uuid
from typing import TYPE_CHECKING, Any

from pairbus.amqp.errors import DETACH_FORCED, ProtocolError
from pairbus.amqp.events import Delivery
from pairbus.amqp.link import ReceiverLink
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import ACCEPTED_BYTES, Source, Target
from pairbus.transport.connection.steps import Steps
from pairbus.transport.errors import ConnectionLost, Refused, Timeout, TransportError
from pairbus.transport.links.link_end import LinkEnd, new_session
from pairbus.transport.links.sender import Sender

if TYPE_CHECKING:
    from pairbus.transport.connection.wire import Wire

ANSWER_CREDIT = 100


class _Answers(LinkEnd):
    """The link on which answers come."""

    _link: ReceiverLink

    def __init__(self, wire: Wire, link: ReceiverLink, what: str) -> None:
        super().__init__(wire, link, what)
        self.expected: dict[Any, asyncio.Future[Message]] = {}

    def on_delivery(self, delivery: Delivery) -> None:
        if not delivery.settled:
            self._link.settle(delivery.delivery_id, delivery.delivery_id, ACCEPTED_BYTES, 1)
        try:
            message = Message.decode(delivery.payload)
        except ProtocolError as error:
            self._wire.lose(ConnectionLost(f"{self._what}: the answer is no message: {error}"))
            self._wire.hang_up()
            return
        properties = message.properties
        answer = self.expected.pop(properties.correlation_id, None) if properties is not None else None
        if answer is not None and not answer.done():  # otherwise the caller has left
            answer.set_result(message)

    def on_over(self, reason: TransportError) -> None:
        super().on_over(reason)
        expected, self.expected = self.expected, {}
        for answer in expected.values():
            if not answer.done():
                answer.set_exception(reason.again(outcome_unknown=True))


class Requests:
    """A pair of links to one node, in one session."""

    def __init__(self, sender: Sender, answers: _Answers, reply_to: str) -> None:
        self.sender = sender
        self._answers = answers
        self._reply_to = reply_to
        self._numbers = itertools.count(1)

    @property
    def over(self) -> TransportError | None:
        """The reason why the pair cannot be used any more, if possible one that the peer named for either link."""
        ends = [end for end in (self.sender.over, self._answers.over) if end is not None]
        named = [end for end in ends if isinstance(end, Refused) and end.condition != DETACH_FORCED]
        return next(iter(named or ends), None)

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for their answers."""
        return len(self._answers.expected)

    async def request(
        self, properties: dict[str, Any], body: Any, deadline: float, silence_s: float | None = None
    ) -> Message:
        """Send one request and wait for its answer. Any number may be under way.

        `silence_s`: longest silence while the request is sent, and again until its answer is there.
        """
        loop = asyncio.get_running_loop()
        number = f"{self._reply_to}:{next(self._numbers)}"
        message = Message(
            properties=Properties(message_id=number, reply_to=self._reply_to),
            application_properties=properties,
            value=body,
            has_value=True,
        )
        answer: asyncio.Future[Message] = loop.create_future()
        self._answers.expected[number] = answer
        what = str(properties.get("operation"))
        sent: asyncio.Future[None] | None = None
        try:
            sent = self.sender.send_soon(message.encode(), timeout_s=deadline - loop.time(), silence_s=silence_s)
            sent.add_done_callback(lambda sent: _pass_on(sent, answer))
            either: list[asyncio.Future[Any]] = [sent, answer]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return await Steps(what, math.inf if silence_s is None else silence_s, deadline).step("its answer", answer)
        except Timeout as error:
            if not answer.cancelled():
                raise  # the sender's error: it knows whether the request was sent
            text = f"{what} was not answered in time"
            raise Timeout(text, error.silence, outcome_unknown=True) from None
        except Refused as error:
            over = self.over
            # The end of one link ends the other, whose error then only says that it was detached.
            raise error if over is None else over.again(outcome_unknown=error.outcome_unknown) from None
        finally:
            self._answers.expected.pop(number, None)
            if sent is not None and (not answer.done() or answer.cancelled()):
                sent.cancel()  # a request that still waits for credit is not sent: its caller has left

    async def close(self, timeout_s: float) -> None:
        await self.sender.close(timeout_s)  # ends the session, and the other link with it

    def leave(self) -> None:
        """Detach both links without waiting for the peer's answer."""
        self.sender.leave()
        self._answers.leave()


def _pass_on(sent: asyncio.Future[None], answer: asyncio.Future[Message]) -> None:
    """Pass a failed send on to the answer: a request that was not accepted gets no answer."""
    error = None if sent.cancelled() else sent.exception()
    if error is not None and not answer.done():
        answer.set_exception(error)


async def open_requests(wire: Wire, address: str, deadline: float, timeout_s: float) -> Requests:
    """Attach both links to the node at `address`."""
    session = new_session(wire)
    reply_to = f"answers-{uuid.uuid4().hex[:12]}"
    answer_link = session.new_receiver(reply_to)
    answers = _Answers(wire, answer_link, f"answers of {address}")
    answer_link.attach(source=Source(address=address), target=Target(address=reply_to), snd_settle_mode=2)
    request_link = session.new_sender(f"requests-{uuid.uuid4().hex[:12]}")
    sender = Sender(wire, request_link, f"requests to {address}", timeout_s)
    request_link.attach(source=Source(address=reply_to), target=Target(address=address), snd_settle_mode=0)
    requests = Requests(sender, answers, reply_to)
    try:
        await answers.attached(deadline)
        answer_link.keep_credit(ANSWER_CREDIT)
        await sender.attached(deadline)
    except BaseException:
        requests.leave()
        raise
    return requests
