"""Transactions of one client: operations that take effect together, in one commit, or not at all.

Laws.
 1. Until its discharge a transaction changes nothing. Messages that are sent in it wait here, and a lock whose
    settlement waits here runs on. So nobody sees an effect before the commit, and a roll-back has nothing to undo.
 2. A discharge checks every operation once more and carries all of them out in one unit of the store, whose commit has
    all of them or none. When one can no longer be carried out (a lock has ended, an entity is full or disabled), the
    transaction is rolled back.
 3. A transaction in which an operation was refused can only be rolled back: a client that sends operations without
    waiting for the answers must not commit the rest.

A transaction ends with its discharge, with its owner (the link on which it was declared), or two minutes after it was
declared. After its time it keeps only its id, so that the client hears why it is over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from pairbus.amqp.errors import (
    RESOURCE_LIMIT_EXCEEDED,
    TRANSACTION_ROLLBACK,
    TRANSACTION_TIMEOUT,
    TRANSACTION_UNKNOWN_ID,
)
from pairbus.broker.boxes.box import Box
from pairbus.broker.boxes.holds import Holder
from pairbus.broker.budget import OPERATION_COST, TRANSACTION_COST, Share
from pairbus.broker.entities.destination import Destination
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.entity import EntityDone
from pairbus.broker.entities.receivable import Outcome, Receivable
from pairbus.broker.entities.session_service import SessionService
from pairbus.broker.refusal import Refusal, lock_lost
from pairbus.broker.store import Store
from pairbus.errors import StoreError

LIFETIME_MS = 120_000
OPERATIONS_MAX = 100  # a message, a settlement or a session state each; how large they may be, the budget decides
OPEN_MAX = 1000  # transactions of one connection, 1 MB without their operations
STRANGER_OPEN_MAX = 10  # of one that has shown no token yet: strangers must not use up the memory of clients
ID_SIZE = 16

OnCommitted = Callable[[], None]


class WaitingSettlement(NamedTuple):
    """The end of one lock."""

    entity: Receivable
    box: Box
    token: bytes
    outcome: Outcome
    patch: bytes


class SessionStateChange(NamedTuple):
    """A new state of a session that the client holds."""

    sessions: SessionService
    session_id: str
    is_mine: Callable[[Holder], bool]
    state: bytes | None


class Transaction:
    """One open transaction: what waits for its discharge. Each method of an operation raises the Refusal of it."""

    def __init__(self, owner: object, store: Store, share: Share, until_ms: int) -> None:
        self.owner = owner
        "Link on which it was declared."
        self.until_ms = until_ms
        self.failure: Refusal | None = None
        "Refusal of the first operation that was refused; None: none was."
        self._store = store
        self._share = share
        self._held_bytes = 0
        self._operation_count = 0
        self._drafts: dict[Destination, list[Draft]] = {}
        self._completions: dict[tuple[Receivable, Box], list[bytes]] = {}
        self._settlements: list[WaitingSettlement] = []
        self._states: list[SessionStateChange] = []
        self._tokens: set[bytes] = set()
        "Locks that the transaction ends."
        self._on_committed: list[OnCommitted] = []
        self._hold(TRANSACTION_COST)

    def __repr__(self) -> str:
        return f"<Transaction operations={self._operation_count} {self._held_bytes} B until {self.until_ms}>"

    # ── operations ──

    def send(self, entity: Destination, drafts: Sequence[Draft]) -> None:
        """Add messages for an entity."""
        entity.check_room()
        entity.check_memory()
        self._add(len(drafts), sum([len(draft.body) + len(draft.annotations) for draft in drafts]))
        self._drafts.setdefault(entity, []).extend(drafts)

    def settle(
        self,
        entity: Receivable,
        box: Box,
        token: bytes,
        outcome: Outcome,
        now_ms: int,
        *,
        patch: bytes = b"",
        on_committed: OnCommitted | None = None,
    ) -> None:
        """Add the end of a lock; `on_committed` is called when it is durable."""
        if token in self._tokens:
            raise lock_lost()
        entity.check_settlement(box, token, outcome, now_ms, patch)
        self._add(1, len(patch))
        self._tokens.add(token)
        if outcome is Outcome.COMPLETE:
            self._completions.setdefault((entity, box), []).append(token)
        else:
            self._settlements.append(WaitingSettlement(entity, box, token, outcome, patch))
        if on_committed is not None:
            self._on_committed.append(on_committed)

    def set_state(
        self,
        sessions: SessionService,
        session_id: str,
        is_mine: Callable[[Holder], bool],
        state: bytes | None,
        now_ms: int,
    ) -> None:
        """Add a new state of a session, or its removal."""
        sessions.check_state(sessions.held(session_id, is_mine, now_ms), state)
        self._add(1, len(state or b""))
        self._states.append(SessionStateChange(sessions, session_id, is_mine, state))

    def _add(self, count: int, size: int) -> None:
        """Count operations, or refuse them."""
        if self._operation_count + count > OPERATIONS_MAX:
            text = f"A transaction has at most {OPERATIONS_MAX} operations: each message of a batch is one."
            raise Refusal(RESOURCE_LIMIT_EXCEEDED, text)
        if not self._share.may_take:
            text = "The broker has no memory for more operations of open transactions: discharge some of them first."
            raise Refusal(RESOURCE_LIMIT_EXCEEDED, text)
        self._operation_count += count
        self._hold(count * OPERATION_COST + size)

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._share.take(size)

    # ── the end ──

    def forget(self) -> None:
        """Drop all operations: nothing has happened."""
        if self._held_bytes > TRANSACTION_COST:
            self._drafts, self._completions, self._settlements, self._states = {}, {}, [], []
            self._tokens, self._on_committed = set(), []
            self._free(self._held_bytes - TRANSACTION_COST)

    def end(self) -> None:
        """Drop everything, at the end of the transaction."""
        self.forget()
        self._free(self._held_bytes)

    def _free(self, size: int) -> None:
        self._held_bytes -= size
        self._share.give(size)

    def discharge(self, now_ms: int, done: EntityDone) -> None:
        """Carry all operations out in one commit, then call `done(None)`; or none of them, and `done(refusal)`.

        While a message id is in an uncommitted send, nobody knows whether it is a duplicate: then the next commit is
        awaited first.
        """
        if self.failure is None and any(entity.is_claimed(drafts) for entity, drafts in self._drafts.items()):
            self._store.after_commit(lambda error: self.discharge(now_ms, done))
            return
        try:
            if self.failure is not None:
                raise self.failure
            with self._store.unit():
                self._carry_out(now_ms)
                self._store.after_commit(partial(self._ended, done))
        except (Refusal, StoreError) as error:
            self._store.after_commit(partial(self._rolled_back, done, error))

    def _carry_out(self, now_ms: int) -> None:
        """Do every operation, in a unit of the store; where one raises, the unit undoes those before it."""
        for entity, drafts in self._drafts.items():
            entity.send(drafts, now_ms, _ignore)
        for (receivable, box), tokens in self._completions.items():
            for token in tokens:
                receivable.check_settlement(box, token, Outcome.COMPLETE, now_ms)
            receivable.complete_many(box, tokens, now_ms, _ignore_many)
        for receivable, box, token, outcome, patch in self._settlements:
            receivable.check_settlement(box, token, outcome, now_ms, patch)
            receivable.settle(box, token, outcome, now_ms, _ignore, patch=patch, in_unit=True)
        for sessions, session_id, is_mine, state in self._states:
            sessions.set_state(sessions.held(session_id, is_mine, now_ms), state, now_ms, _ignore)

    def _ended(self, done: EntityDone, error: StoreError | None) -> None:
        if error is not None:
            self._rolled_back(done, error, None)
            return
        on_committed = self._on_committed
        self.end()
        for tell in on_committed:
            tell()
        done(None)

    def _rolled_back(self, done: EntityDone, why: Refusal | StoreError, _error: StoreError | None) -> None:
        self.end()
        reason = why.description if isinstance(why, Refusal) else str(why)
        done(Refusal(TRANSACTION_ROLLBACK, f"The transaction was rolled back: {reason}"))


class Transactions:
    """The open transactions of one connection, by id."""

    def __init__(self, store: Store, share: Share) -> None:
        self._store = store
        self._share = share
        self._open: dict[bytes, Transaction] = {}
        "In the order of their ends."

    def __len__(self) -> int:
        return len(self._open)

    def declare(self, owner: object, now_ms: int, *, is_stranger: bool = False) -> bytes:
        """Begin a transaction and return its id; Refusal: there are too many. `is_stranger`: without a token yet."""
        open_max = STRANGER_OPEN_MAX if is_stranger else OPEN_MAX
        self._drop_oldest(now_ms, open_max)
        if len(self._open) >= open_max or not self._share.may_take:
            text = f"There are too many open transactions ({len(self._open)} on this connection): discharge some first."
            raise Refusal(RESOURCE_LIMIT_EXCEEDED, text)
        txn_id = os.urandom(ID_SIZE)  # not a number: a client may use an id of its previous connection
        self._open[txn_id] = Transaction(owner, self._store, self._share, now_ms + LIFETIME_MS)
        return txn_id

    def _drop_oldest(self, now_ms: int, open_max: int) -> None:
        """Forget ids whose time is over, when there is no room for another."""
        while len(self._open) >= open_max:
            txn_id, oldest = next(iter(self._open.items()))
            if oldest.until_ms > now_ms:
                return
            self._end(txn_id)

    def find(self, txn_id: bytes, now_ms: int) -> Transaction:
        """Return an open transaction. Refusal: there is none of this id, or its time is over."""
        transaction = self._open.get(txn_id)
        if transaction is None:
            raise _unknown(txn_id)
        if transaction.until_ms <= now_ms:
            transaction.forget()
            raise Refusal(TRANSACTION_TIMEOUT, f"{_name(txn_id)} was rolled back after {LIFETIME_MS // 1000} seconds.")
        return transaction

    def fail(self, txn_id: bytes, refusal: Refusal) -> None:
        """Note that an operation was refused: the transaction, if it is open, can only be rolled back."""
        transaction = self._open.get(txn_id)
        if transaction is not None and transaction.failure is None:
            transaction.failure = refusal
            transaction.forget()

    def discharge(self, txn_id: bytes, now_ms: int, done: EntityDone, *, fail: bool = False) -> None:
        """End a transaction; `done` gets None when all its operations are durable (with `fail`: when none is).

        Refusal: there is none of this id, or its time is over.
        """
        try:
            transaction = self.find(txn_id, now_ms)
        except Refusal:
            self._end(txn_id)
            raise
        if fail:
            self._end(txn_id)
            self._store.after_commit(lambda error: done(None))
            return
        del self._open[txn_id]
        transaction.discharge(now_ms, done)

    def roll_back(self, owner: object) -> None:
        """Roll back the transactions that were declared on this link: it is gone."""
        for txn_id in [txn_id for txn_id, each in self._open.items() if each.owner is owner]:
            self._end(txn_id)

    def run_due(self, now_ms: int) -> None:
        """Drop the operations of transactions whose time is over."""
        for transaction in self._open.values():
            if transaction.until_ms > now_ms:
                return
            transaction.forget()

    def shift(self, ms: int) -> None:
        """Move the ends of all transactions: the clock was set."""
        for transaction in self._open.values():
            transaction.until_ms += ms

    def _end(self, txn_id: bytes) -> None:
        transaction = self._open.pop(txn_id, None)
        if transaction is not None:
            transaction.end()


def _name(txn_id: bytes) -> str:
    return f"The transaction '{txn_id[:ID_SIZE].hex()}'"  # an unknown one may be of any length


def _unknown(txn_id: bytes) -> Refusal:
    text = f"{_name(txn_id)} is not known on this connection: it was discharged, or rolled back with its link."
    return Refusal(TRANSACTION_UNKNOWN_ID, text)


def _ignore(_answer: Any) -> None:
    """Take the answer to one operation: the unit tells how all of them ended."""


def _ignore_many(_lost: list[bytes], _refusal: Refusal | None) -> None:
    """Take the answer to completions, as `_ignore` does."""
