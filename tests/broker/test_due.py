"""The two heaps of things that fall due."""

from __future__ import annotations

from pairbus.broker.boxes.due import SLACK, Agenda, ExpiryHeap


def test_keys_come_out_at_their_time_and_in_its_order() -> None:
    """The earliest key comes out first; keys that are not due stay."""
    agenda: Agenda[str] = Agenda()
    for key, at_ms in (("late", 30), ("early", 10), ("middle", 20)):
        agenda.set(key, at_ms)
    assert agenda.next_ms() == 10
    assert agenda.pop_due(20) == ["early", "middle"]
    assert agenda.next_ms() == 30
    assert agenda.pop_due(29) == []
    assert len(agenda) == 1


def test_a_key_has_one_time_the_last_one_set() -> None:
    """Replacing is lazy inside; outside, the old time must have no effect in either direction."""
    agenda: Agenda[str] = Agenda()
    agenda.set("a", 10)
    agenda.set("a", 50)
    assert (agenda.next_ms(), agenda.pop_due(49)) == (50, [])
    agenda.set("a", 20)
    agenda.set("a", 20)
    assert agenda.pop_due(100) == ["a"]
    assert agenda.pop_due(100) == []


def test_removed_key_that_is_set_again_comes_out_once() -> None:
    """Setting the same time after a removal must not bring out the key twice."""
    agenda: Agenda[str] = Agenda()
    agenda.set("a", 10)
    agenda.set("a", None)
    assert (agenda.next_ms(), "a" in agenda) == (None, False)
    agenda.set("a", 10)
    assert agenda.pop_due(10) == ["a"]
    assert agenda.pop_due(10) == []


def test_at_most_the_limit_comes_out_at_once() -> None:
    """The rest stays due."""
    agenda: Agenda[int] = Agenda()
    for key in range(5):
        agenda.set(key, key)
    assert agenda.pop_due(9, limit=3) == [0, 1, 2]
    assert agenda.next_ms() == 3


def test_replacing_one_key_for_ever_does_not_grow_the_heap() -> None:
    """An idle timer is set again at every use."""
    agenda: Agenda[str] = Agenda()
    agenda.set("other", 5)
    for at_ms in range(100_000):
        agenda.set("a", at_ms)
    assert len(agenda._heap) <= SLACK + 5
    assert agenda.pop_due(200_000) == ["other", "a"]


def test_expiries_come_once_although_a_message_may_have_several_entries() -> None:
    """A message gets another entry whenever it comes back."""
    heap: ExpiryHeap[int] = ExpiryHeap()
    for expires_ms, seq in ((20, 7), (10, 9), (10, 9), (30, 8)):
        heap.add(expires_ms, seq)
    assert heap.next_ms() == 10
    assert heap.pop_due(20, 100) == [9, 7]
    assert heap.next_ms() == 30


def test_a_crowded_expiry_heap_keeps_only_what_waits() -> None:
    """Messages that are received long before they expire must not stay in memory until then."""
    heap: ExpiryHeap[int] = ExpiryHeap()
    for seq in range(SLACK + 2):
        heap.add(1000 - seq % 7, seq)
    assert not heap.crowded
    heap.live = 0
    assert heap.crowded
    heap.compact(lambda seq: seq in (3, 4))
    assert heap.pop_due(1000, 100) == [4, 3]
