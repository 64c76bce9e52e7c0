"""The questions of a passage to its rules, and the answers that it can carry out.

A passage follows the frames of two peers and decides nothing. Its rules decide: those of the proxy
(`pairbus.proxy.faults`) ask the table of faults, those of a test (`pairbus.testing.network_switches`) their own
switches.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pairbus.amqp.performatives import Error
from pairbus.proxy.conversation import FollowedLink, Unit


class How(Enum):
    """A way to treat a frame."""

    HOLD = "it waits, and what is behind it on its link as well, until its key is released"
    RESET = "it is lost, and both ends are reset"
    REFUSE = "it is lost, and the client hears that it is rejected"
    DETACH = "it is lost, and the client hears that its link is detached"
    LOSE_ANSWER = "it passes; its answer does not, and the connection is cut instead"


@dataclass(frozen=True, slots=True)
class FrameAct:
    """A way to treat one frame, with its arguments."""

    how: How
    key: object = None
    "HOLD: `Passage.release` with the same key lets the frame go."
    error: Error | None = None
    "REFUSE, DETACH: the reason."


RESET = FrameAct(How.RESET)


class FrameRules(Protocol):
    """Decisions about one frame at a time; None lets it pass."""

    def attach(self, link: FollowedLink) -> FrameAct | None:
        """Decide about a client that attaches a link."""
        ...

    def message(self, link: FollowedLink, unit: Unit) -> FrameAct | None:
        """Decide about a client that begins to send a message, or a request when the link leads to a `$` node."""
        ...

    def asks(self, link: FollowedLink) -> FrameAct | None:
        """Decide about a client that gives credit: it wants messages."""
        ...

    def delivery(self, link: FollowedLink) -> FrameAct | None:
        """Decide about a target that begins to deliver a message."""
        ...

    def settlement(self, link: FollowedLink) -> FrameAct | None:
        """Decide about a client that settles messages of this link."""
        ...

    def drops_answer(self, link: FollowedLink, *, to_settlement: bool) -> bool:
        """Tell whether the target's answer to a message, or to a settlement, is lost and nothing else happens."""
        ...
