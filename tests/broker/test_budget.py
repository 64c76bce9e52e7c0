"""The budget of bytes: fair shares, and holders that give up what they hold."""

from __future__ import annotations

import pytest

from pairbus.broker.budget import MemoryAccount, Shelf


def test_share_takes_while_it_has_less_than_is_free() -> None:
    """One greedy client gets half of an account, not all of it."""
    account = MemoryAccount(100)
    greedy = account.share()
    while greedy.may_take:
        greedy.take(1)
    assert (greedy.used, account.used) == (50, 50)


@pytest.mark.parametrize("greedy", [1, 10, 99])
def test_greedy_clients_leave_room_for_one_more(greedy: int) -> None:
    """However many take all they can, the next one may take as well, and the sum stays below the limit."""
    account = MemoryAccount(1_000_000)
    shares = [account.share() for _ in range(greedy)]
    while takers := [share for share in shares if share.may_take]:
        for share in takers:
            share.take(100)
    newcomer = account.share()
    assert newcomer.may_take
    while newcomer.may_take:
        newcomer.take(100)
    assert newcomer.used >= 1_000_000 // (3 * greedy + 3)
    assert account.used <= 1_000_000


def test_share_that_waits_is_called_once_when_it_may_take() -> None:
    """A call that came too early, or twice, would wake a client for nothing."""
    account, calls = MemoryAccount(100), list[str]()
    first, second = account.share(), account.share()
    first.take(100)
    second.when_free(lambda: calls.append("second"))
    first.give(0)
    assert calls == []
    first.give(60)
    first.give(10)
    assert calls == ["second"]


def test_closed_share_counts_nowhere() -> None:
    """A commit that ends after its client is gone gives back what was given back already."""
    account = MemoryAccount(100)
    share = account.share()
    share.take(70)
    share.close()
    share.give(70)
    assert account.used == 0


class Keeper:
    """Holds bytes, some of which may go by themselves."""

    def __init__(self, shelf: Shelf, size: int) -> None:
        self.size = size
        self.has_given_up = False
        self._shelf = shelf
        self.hold()

    def hold(self) -> None:
        self._shelf.note_size(self, self.size)

    def held_bytes(self) -> int:
        return self.size

    def give_up(self) -> None:
        self.size = 0
        self.has_given_up = True


def test_holder_that_was_used_longest_ago_gives_up_first() -> None:
    """The one that asks keeps what it has: otherwise nothing would ever move."""
    shelf = Shelf(100)
    first, second, third = (Keeper(shelf, 30) for _ in range(3))
    first.hold()
    last = Keeper(shelf, 60)
    assert [each.has_given_up for each in (first, second, third, last)] == [False, True, True, False]
    assert shelf.used == 90


def test_holders_are_measured_before_anyone_gives_up() -> None:
    """A socket that was emptied in silence must not cost its client the connection."""
    shelf = Shelf(100)
    emptied, full = Keeper(shelf, 60), Keeper(shelf, 40)
    emptied.size = 0
    last = Keeper(shelf, 50)
    assert not any(each.has_given_up for each in (emptied, full, last))
    assert shelf.used == 90


def test_full_shelf_of_many_holders_measures_few_of_them_at_a_time() -> None:
    """Each of ten thousand queues may have loaded messages; each load then asks for room."""
    shelf, measured = Shelf(100_000), list[Keeper]()

    class Measured(Keeper):
        def held_bytes(self) -> int:
            measured.append(self)
            return super().held_bytes()

    for _ in range(1_000):
        Measured(shelf, 100)
    for _ in range(500):
        Measured(shelf, 100)
    assert shelf.used == 100_000
    assert len(measured) < 10_000


def test_holder_alone_may_be_too_large() -> None:
    """A message of 100 MB is delivered, and nothing else of its kind beside it."""
    shelf = Shelf(100)
    large = Keeper(shelf, 500)
    assert not large.has_given_up
    small = Keeper(shelf, 1)
    assert large.has_given_up and shelf.used == small.size


def test_call_that_wakes_another_share_is_no_error() -> None:
    """Bytes that a woken client gives back may wake the next one at once."""
    account, calls = MemoryAccount(100), list[str]()
    holder, first, second = account.share(), account.share(), account.share()
    holder.take(100)

    def take_and_give() -> None:
        calls.append("first")
        first.take(1)
        first.give(1)

    first.when_free(take_and_give)
    second.when_free(lambda: calls.append("second"))
    holder.give(100)
    assert sorted(calls) == ["first", "second"]
