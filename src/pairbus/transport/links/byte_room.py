"""How many more messages a receiver may ask for, when the bytes of those that wait for a reader have a limit.

A peer is given credit before the sizes are known. So a message on its way counts as much as the largest of the last
ones; until one has come, as much as the largest of the Standard tier. When large messages follow small ones, the credit
that is open already is too much: the receiver takes the rest of it back as soon as one of them has come.
"""

from __future__ import annotations

FIRST_BYTES = 256 << 10  # of a message, while no size is known
FORGET_SHIFT = 2  # each smaller message takes away a quarter of the difference to the expected size


class ByteRoom:
    """The bytes of one receiver's buffer, and those that are expected."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        "Bytes that wait for a reader."
        self.expected = FIRST_BYTES
        "Bytes that each message on its way counts."

    def arrived(self, size: int) -> None:
        self.held += size
        if size >= self.expected:
            self.expected = size
        else:
            self.expected -= (self.expected - size) >> FORGET_SHIFT

    def left(self, size: int) -> None:
        """Note that a message was read, or given back."""
        self.held -= size

    def credit(self, wanted: int) -> int:
        """Return how many messages may be on their way: one at least when none waits, however large it is."""
        room = (self.bytes_max - self.held) // self.expected if self.expected else wanted
        return min(wanted, max(room, 0 if self.held else 1))
