"""The bytes that the broker may have in memory: one memory budget for all namespaces of a process.

    account     limit   held by                                             when it is full
    ready       64 MB   boxes: messages loaded before their turn            the box that used its own last unloads them
    locked     128 MB   clients: locks and unsettled deliveries             the client waits until some are settled
    arriving    64 MB   clients: messages received and not yet committed    the client is not read from
    unfinished 128 MB   clients: messages of which only a part has come     the client that stood still longest is cut
    leaving     64 MB   clients: bytes written and not read, and answers    the client that stood still longest is cut
    moving       8 MB   entities: bodies that an uncommitted write carries  the next batch waits for the commit
    undecided   64 MB   clients: open transactions and their operations     the operation is refused
    sum        520 MB
    index      half of the machine's memory: what is kept for each waiting message and id; then sends are refused

Law. A client takes more while it has less than is free. So one greedy client gets half of an account, two get a third
each, and there is always room for one more; nobody counts clients. The check comes before the size is known, so every
client may go beyond by one piece: a message, or a read of 256 KB.

Bodies of locked messages are not in memory: the store has them, and only their heads are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

MB = 1 << 20
READY_MAX_BYTES = 64 * MB
LOCKED_MAX_BYTES = 128 * MB
ARRIVING_MAX_BYTES = 64 * MB
UNFINISHED_MAX_BYTES = 128 * MB  # a message may have 100 MB
LEAVING_MAX_BYTES = 64 * MB
MOVING_MAX_BYTES = 8 * MB
UNDECIDED_MAX_BYTES = 64 * MB
MOVE_BYTES = 2 * MB  # bodies that one batch of due work moves; one message may be larger
MEASURED_AFTER = 8  # holders of a shelf are measured again when they have grown by this part of its limit
INDEX_MAX_BYTES = 4096 * MB  # where nobody says how much memory there is

# Measured (tests/broker/test_memory_costs.py), beside the bytes of bodies, annotations and changed properties.
READY_COST = 520  # one loaded message
LOCK_COST = 800  # one lock, with the head of its message
DELIVERY_COST = 230  # one delivery that the client has not settled
WAITING_COST = 48  # one waiting message that is not loaded
SCHEDULED_COST = 520  # one scheduled message
PAYLOAD_COST = 320  # one large or shared body that the store has
REMEMBERED_COST = 240  # one id of duplicate detection
TRANSACTION_COST = 1000  # one open transaction
OPERATION_COST = 700  # one operation of an open transaction


class MemoryAccount:
    """Bytes of one kind, of all clients together; each client or entity has a `Share`."""

    __slots__ = ("_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: dict[Share, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"<MemoryAccount {self.used} of {self.limit} B, {len(self._waiting)} wait>"

    def share(self) -> Share:
        return Share(self)

    @property
    def is_full(self) -> bool:
        return self.used >= self.limit

    def wake(self) -> None:
        """Call those who wait and may take again."""
        ready = [share for share in self._waiting if share.may_take]
        for share in ready:
            call = self._waiting.pop(share, None)  # an earlier call may have woken it
            if call is not None:
                call()


class Share:
    """Bytes that one client or entity holds of an account."""

    __slots__ = ("_account", "used")

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self.used = 0

    def __repr__(self) -> str:
        return f"<Share {self.used} B of {self._account!r}>"

    @property
    def room(self) -> int:
        """Bytes by which what is free exceeds the share; 0 or less: it may not take more."""
        account = self._account
        return account.limit - account.used - self.used

    @property
    def may_take(self) -> bool:
        """True while the share is smaller than what is free."""
        return self.room > 0

    def take(self, size: int) -> None:
        self.used += size
        self._account.used += size

    def give(self, size: int) -> None:
        self.used -= size
        account = self._account
        account.used -= size
        if account._waiting:
            account.wake()

    def close(self) -> None:
        """Return everything, at the end of a client or an entity; what it still takes or gives counts nowhere."""
        self._account._waiting.pop(self, None)
        self.give(self.used)
        self._account = MemoryAccount(0)

    def when_free(self, call: Callable[[], None]) -> None:
        """Call once when the share may take again; nothing is taken before."""
        self._account._waiting[self] = call


class MemoryHolder(Protocol):
    """Holds bytes of a shelf, and can give them up."""

    def held_bytes(self) -> int:
        """Return what is held now: some of it may have gone without notice."""
        ...

    def give_up(self) -> None:
        """Let go of everything."""
        ...


class Shelf:
    """Bytes of one kind that their holders can give up: when they are too many, the least recently used go first."""

    __slots__ = ("_grown", "_holders", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._grown = 0
        "Bytes by which holders have grown since all of them were measured."
        self._holders: OrderedDict[MemoryHolder, int] = OrderedDict()
        "Bytes of each holder; those that changed longest ago are first."

    def __repr__(self) -> str:
        return f"<Shelf {self.used} of {self.limit} B, {len(self._holders)} holders>"

    def note_size(self, holder: MemoryHolder, size: int) -> None:
        """Note what a holder holds from now on; 0: nothing. Others may be told to give up theirs."""
        holders = self._holders
        if size:
            growth = size - holders.get(holder, 0)
            self.used += growth
            if growth > 0:
                self._grown += growth
            holders[holder] = size
            holders.move_to_end(holder)
            if self.used > self.limit:
                self._make_room()
        elif holder in holders:
            self.used -= holders.pop(holder)

    def _make_room(self) -> None:
        """Let the first ones go, each measured again before; the last one has just asked and keeps what it has.

        There may be as many holders as queues, so all are measured only after growth by a part of the limit.
        """
        holders = self._holders
        if self._grown >= self.limit // MEASURED_AFTER:
            self._grown = 0
            for holder in list(holders):
                self._measure(holder)
        while self.used > self.limit and len(holders) > 1:
            holder = next(iter(holders))
            size = self._measure(holder)
            if self.used > self.limit:
                del holders[holder]
                self.used -= size
                if size:
                    holder.give_up()

    def _measure(self, holder: MemoryHolder) -> int:
        """Note what a holder really has; its place in the order stays."""
        size = holder.held_bytes()
        self.used += size - self._holders[holder]
        self._holders[holder] = size
        return size


class MemoryBudget:
    """The accounts of one process."""

    def __init__(self, index_bytes: int = INDEX_MAX_BYTES) -> None:
        self.ready = Shelf(READY_MAX_BYTES)
        self.locked = MemoryAccount(LOCKED_MAX_BYTES)
        self.arriving = MemoryAccount(ARRIVING_MAX_BYTES)
        self.unfinished = Shelf(UNFINISHED_MAX_BYTES)
        self.leaving = Shelf(LEAVING_MAX_BYTES)
        self.moving = MemoryAccount(MOVING_MAX_BYTES)
        self.undecided = MemoryAccount(UNDECIDED_MAX_BYTES)
        self.index = MemoryAccount(index_bytes)
