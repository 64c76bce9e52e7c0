"""Summary of a drain about the messages that it left behind."""

from __future__ import annotations

from pairbus.broker import QueueDescription
from pairbus.cli.pipeline.left import COUNT_MAX, NOTHING_LEFT, Left, look
from pairbus.transport import Carrier
from tests.syphon.world import BACKLOG, message, pair

ORDERS = QueueDescription("orders")
MISSING = "contoso/x-servicebus-transfer/9"
LOOK_S = 20.0


async def test_locked_messages_count_and_queues_that_are_not_there_do_not() -> None:
    """Each request is metered."""
    async with pair(ORDERS) as world:
        asked: list[tuple[str, bool]] = []
        meter = lambda path, size_bytes: asked.append((path, size_bytes > 0))  # noqa: E731
        assert await look(world.secondary, [MISSING, BACKLOG], meter, LOOK_S) == NOTHING_LEFT
        await world.divert("orders", [message(number) for number in range(3)])
        receiver = await world.secondary.receiver(BACKLOG, credit=1)
        assert await receiver.receive(1, 5.0)
        asked.clear()
        assert await look(world.secondary, [MISSING, BACKLOG], meter, LOOK_S) == Left(3, is_all=True)
        assert asked == [(BACKLOG, True), (BACKLOG, False)]
        await receiver.close()


async def test_a_count_that_is_not_complete_says_so() -> None:
    """The count stops at a maximum; a peer that is gone cannot be counted."""
    async with pair(ORDERS) as world:
        await world.divert("orders", [message(number) for number in range(COUNT_MAX + 1)])
        assert await look(world.secondary, [BACKLOG], lambda *_: None, LOOK_S) == Left(COUNT_MAX, is_all=False)
        connection_string = world.broker.connection_string("fabrikam")
    async with Carrier(connection_string, timeout_s=1.0) as gone:
        assert await look(gone, [BACKLOG], lambda *_: None, LOOK_S) == Left(0, is_all=False)
