"""Changes of a namespace that a user wants to see at once: entities, dead letters, faults, the clock. No I/O.

Followers are told only that there is a change; they look again themselves. Messages that come and go are no change.
"""

from __future__ import annotations

from collections.abc import Callable

from pairbus.errors import PairbusError

FOLLOWERS_MAX = 100

Follower = Callable[[], None]
"Called on the event loop, for each change; it must return at once."


class Changes:
    """The followers of one namespace."""

    def __init__(self) -> None:
        self._followers: list[Follower] = []
        self.is_over = False
        "True when the namespace stops: no change will be told any more."

    def note(self) -> None:
        """Tell the followers that there is a change."""
        for follower in tuple(self._followers):
            follower()

    def follow(self, follower: Follower) -> None:
        """Tell this follower of changes from now on. PairbusError: there are too many followers."""
        if len(self._followers) >= FOLLOWERS_MAX:
            raise PairbusError(f"{FOLLOWERS_MAX} follow this namespace already")
        self._followers.append(follower)

    def leave(self, follower: Follower) -> None:
        self._followers.remove(follower)

    def close(self) -> None:
        """Tell the followers that the namespace stops."""
        self.is_over = True
        self.note()
