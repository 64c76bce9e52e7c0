"""Six ways to be wrong, each a small change of the genuine code inside the process that the world starts.

Each row has the storm that makes it show, and the finding that names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from pairbus.pairing.commands import ToBacklog
from tests.nemesis.places import BILLS, ORDERS, PRIMARY, SECONDARY
from tests.nemesis.plan import AddFault, Kill, Plan, Step

OFTEN = 7
"A broken broker errs in one of so many cases: it must be caught, not be dead."
OFTEN_LOCKED = 2
"The same for locks: that one was given twice shows only where both deliveries are completed in time, which is seldom."


# ── the client ──


def acknowledges_too_early() -> None:
    """A client says that a message is in the backlog before the backlog has said so."""
    from pairbus.client import sends

    genuine = sends._sent

    async def sent(*args: Any, **kwargs: Any) -> Any:
        send: Any = genuine(*args, **kwargs)
        if any(isinstance(argument, ToBacklog) for argument in args):
            asyncio.get_running_loop().create_task(send)  # the bug: the outcome of the attempt is ignored
            return None
        return await send

    sends._sent = sent


def mistakes_the_destination() -> None:
    """A client writes another destination on diverted messages."""
    from pairbus.client.outgoing import Outgoing

    genuine = Outgoing.wrapped

    def wrapped(self: Outgoing, path: str, *args: Any) -> list[bytes]:
        return genuine(self, BILLS if path == ORDERS else path, *args)

    Outgoing.wrapped = wrapped  # type: ignore[method-assign, assignment]


def completes_first() -> None:
    """A syphon completes messages before the primary has accepted them."""
    from pairbus.syphon import send

    async def outcome(shared: Any, chunk: Any, answer: Any) -> None:
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(lambda answered: answered.cancelled() or answered.exception())

    send.outcome_of = outcome


# ── the broker ──


def answers_before_the_commit() -> None:
    """A broker says that a message is stored while its disk is still at work."""
    from pairbus.broker.store.sqlite import SqliteStore

    def after_commit(self: SqliteStore, done: Any) -> None:
        self._running_loop().call_soon(done, None)

    SqliteStore.after_commit = after_commit  # type: ignore[method-assign]


def gives_a_lock_twice() -> None:
    """A broker hands out a message that somebody holds."""
    from pairbus.broker.boxes.box import Box

    genuine, turn = Box.lock_next, count()

    def lock_next(self: Box, *args: Any) -> Any:
        locks = genuine(self, *args)
        if locks and self.sessions is None and next(turn) % OFTEN_LOCKED == 0:
            self.give_back(locks[0].message)
        return locks

    Box.lock_next = lock_next  # type: ignore[method-assign, assignment]


def restores_the_settled() -> None:
    """A broker forgets some deletions on their way to the disk: what was completed is there again after a restart."""
    from pairbus.broker.store import Delete
    from pairbus.broker.store.sqlite import SqliteStore

    genuine, turn = SqliteStore.write, count()

    def write(self: SqliteStore, op: Any) -> None:
        if not isinstance(op, Delete) or next(turn) % OFTEN:
            genuine(self, op)

    SqliteStore.write = write  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Bug:
    plant: Callable[[], None]
    finding: str
    "The name that the judge must give it."
    steps: tuple[Step, ...]
    in_broker: bool = False

    @property
    def plan(self) -> Plan:
        """Return a short storm with few processes, for this bug alone."""
        syphons = () if self.in_broker else ("one",)
        return Plan(
            self.steps, STORM_S, senders=("sync",), receivers=("left",), syphons=syphons, calls_least=CALLS_LEAST
        )


STORM_S, CALLS_LEAST = 3.0, 100
_AWAY = AddFault(0.3, PRIMARY, {"kind": "quota", "entity": ORDERS, "for_s": 60})
_REFUSING = AddFault(0.3, PRIMARY, {"kind": "refuse", "for_s": 60})
_FAILING = AddFault(0.3, SECONDARY, {"kind": "internal-error", "direction": "send", "probability": 0.4, "for_s": 60})
_CLOSED = AddFault(0.0, SECONDARY, {"kind": "quota", "for_s": 60})  # nothing is diverted, so no syphon is needed
_SLOW = AddFault(0.3, PRIMARY, {"kind": "slow-disk", "delay_s": 1.0, "for_s": 60})
_CRASH = Kill(2.0, (PRIMARY,), 0.1)

BUGS: dict[str, Bug] = {
    "acknowledges too early": Bug(acknowledges_too_early, "lost", (_REFUSING, _FAILING)),
    "mistakes the destination": Bug(mistakes_the_destination, "misrouted", (_AWAY,)),
    "completes first": Bug(completes_first, "lost", (_AWAY,)),
    "answers before the commit": Bug(answers_before_the_commit, "lost", (_CLOSED, _SLOW, _CRASH), in_broker=True),
    "gives a lock twice": Bug(gives_a_lock_twice, "settled_twice", (), in_broker=True),
    "restores the settled": Bug(restores_the_settled, "redelivered_after_complete", (_CLOSED, _CRASH), in_broker=True),
}


def plant(name: str) -> None:
    """Break this process; an empty name leaves it as it is."""
    if name:
        BUGS[name].plant()
