"""Checks of a history of workers that is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.processors.world import World

REASON_MIN = 10  # characters; a shorter one explains nothing


def violations(world: World) -> list[str]:
    """Return one line for each message that is lost, or was handled again without a reason."""
    found, book, queue = [], world.book, world.queue
    for message_id in world.sent:
        places = queue.places(message_id)
        handled = book.handled[message_id]
        if not handled and not places and message_id not in book.asked:
            found.append(f"lost: no handler of {message_id} has ended well, and it is nowhere")
        again = handled - 1 + bool(places)
        if handled and again and message_id not in book.excused:
            found.append(f"again: {message_id} was handled {handled} times, and is {places}, and nobody was told why")
    found += [
        f"without a reason: {copy.message_id} is dead-lettered: {copy.reason}"
        for copy in queue.dead
        if len(copy.reason) < REASON_MIN
    ]
    return found
