"""Fate of backlog messages, decided without a network; and how fast a syphon goes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.message import Message, Properties, encode_batch
from pairbus.amqp.types import Symbol
from pairbus.backlog.envelope import Home
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.policy import Failure, Kind
from pairbus.syphon.decide.batch import Item, by_destination, waves
from pairbus.syphon.decide.dead_letter import FATES, MISSING, REFUSED, Fate
from pairbus.syphon.decide.destinations import MISSING_MEMORY_S, Destinations
from pairbus.syphon.decide.lanes import LANE_MEMORY_S, LANES_LOOK, Lanes, Tide
from pairbus.syphon.decide.pace import PAUSE_MAX_S, BatchSize, Budget, Pauses
from pairbus.syphon.decide.redriving import entity_of_dead_letters
from pairbus.syphon.decide.settings import SyphonSettings


def item(place: int, path: str = "orders", size: int = 10, **home: object) -> Item:
    return Item(place, Home(path, b"", **home), bytes(size))  # type: ignore[arg-type]


def failed(destinations: Destinations, kind: Kind, now: float, path: str = "orders", **options: bool) -> Fate:
    return destinations.failed(path, Failure(kind, kind.value), now, **options).fate


# ── failures ──


def test_every_kind_of_failure_has_a_fate() -> None:
    """An absent row would stop a pump on the night of the outage."""
    assert set(FATES) == set(Kind)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.TOO_LARGE, Kind.INVALID)])
def test_a_failing_destination_is_skipped_and_nothing_dead_lettered(kind: Kind) -> None:
    """An entity that is unreachable, busy, full, disabled, unauthorized or missing may work again tomorrow."""
    assert failed(Destinations(900), kind, 0.0) is Fate.SKIP


@pytest.mark.parametrize("kind", [Kind.TOO_LARGE, Kind.INVALID])
def test_a_message_that_is_refused_as_such_is_dead_lettered(kind: Kind) -> None:
    """Waiting does not help the message, and the description tells a person why."""
    ruling = Destinations(900).failed("orders", Failure(kind, "300000 bytes"), 0.0)
    assert (ruling.fate, ruling.reason) == (Fate.DEAD_LETTER, REFUSED)
    assert "'orders'" in ruling.description and "300000 bytes" in ruling.description


def test_a_missing_destination_is_waited_for_as_long_as_its_grace() -> None:
    """The destination may be redeployed; when it is found again, the grace begins anew."""
    destinations = Destinations(900)
    assert failed(destinations, Kind.NOT_FOUND, 100.0) is Fate.SKIP
    for now in (400.0, 700.0, 999.9):
        assert failed(destinations, Kind.NOT_FOUND, now, path="/ORDERS") is Fate.SKIP
    ruling = destinations.failed("orders", Failure(Kind.NOT_FOUND, "no such entity"), 1000.0)
    assert (ruling.fate, ruling.reason) == (Fate.DEAD_LETTER, MISSING)
    assert "900 s" in ruling.description and "re-drive" in ruling.description
    destinations.delivered("Orders")
    assert failed(destinations, Kind.NOT_FOUND, 1001.0) is Fate.SKIP


def test_a_destination_that_was_missing_days_ago_is_waited_for_again() -> None:
    """Another syphon may have delivered there since: only failures in short succession prove a missing destination."""
    destinations = Destinations(900)
    failed(destinations, Kind.NOT_FOUND, 0.0)
    days = 3 * 86_400.0
    assert failed(destinations, Kind.NOT_FOUND, days) is Fate.SKIP
    assert failed(destinations, Kind.NOT_FOUND, days + MISSING_MEMORY_S) is Fate.SKIP
    assert failed(destinations, Kind.NOT_FOUND, days + 900.0) is Fate.DEAD_LETTER


def test_a_destination_that_answers_anything_else_is_not_missing() -> None:
    """Disabled is there. The grace begins again."""
    destinations = Destinations(10)
    failed(destinations, Kind.NOT_FOUND, 0.0)
    failed(destinations, Kind.DISABLED, 5.0)
    assert failed(destinations, Kind.NOT_FOUND, 11.0) is Fate.SKIP


def test_each_queue_marks_a_missing_destination_once() -> None:
    """The mark tells other processes since when it is missing; one message of a queue is enough to carry it."""
    destinations = Destinations(900)
    assert not destinations.needs_mark("b/0", "orders"), "nobody has found it missing"
    destinations.delivered("orders")
    failed(destinations, Kind.NOT_FOUND, 5.0)
    assert [destinations.needs_mark(queue, "Orders") for queue in ("b/0", "b/0", "b/1")] == [True, False, True]
    destinations.delivered("bills")
    assert not destinations.needs_mark("b/0", "orders")
    destinations.delivered("orders")
    failed(destinations, Kind.NOT_FOUND, 50.0)
    assert destinations.needs_mark("b/0", "orders"), "it was there in between"


def test_a_refused_link_is_no_messages_fault() -> None:
    """The path itself may be impossible: that is as good as missing."""
    destinations = Destinations(10)
    assert failed(destinations, Kind.INVALID, 0.0, at_attach=True) is Fate.SKIP
    assert failed(destinations, Kind.INVALID, 10.0, at_attach=True) is Fate.DEAD_LETTER


def test_a_busy_destination_is_left_alone_for_ten_seconds() -> None:
    """The service asks this of every client; other destinations are not affected."""
    destinations = Destinations(900)
    failed(destinations, Kind.BUSY, 100.0)
    assert destinations.closed_because("ORDERS", 109.9) is not None
    assert destinations.closed_because("bills", 100.0) is None
    assert destinations.closed_because("orders", 110.0) is None


# ── what goes together ──


def test_messages_are_grouped_by_destination_in_the_order_of_the_queue() -> None:
    """Paths compare without case: two spellings are one entity."""
    groups = by_destination([item(0, "a"), item(1, "B"), item(2, "A"), item(3, "b/"), item(4, "b/"), item(5, "a")])
    assert {key: [one.place for one in group] for key, group in groups.items()} == {"a": [0, 2, 5], "b": [1, 3, 4]}


def places(found: list[list[list[Item]]]) -> list[list[list[int]]]:
    return [[[one.place for one in chunk] for chunk in chunks] for chunks in found]


def test_a_batch_has_one_session_and_fits_the_destination() -> None:
    """Partitioned entities refuse a batch of several sessions; a link says how much it takes."""
    items = [item(0), item(1, session_id="s"), item(2), item(3, session_id="t"), item(4, session_id="s")]
    assert places(waves(items, 0, in_batches=True)) == [[[0, 2], [1, 4], [3]]]
    large = [item(place, size=100) for place in range(5)]
    assert places(waves(large, 250, in_batches=True)) == [[[0, 1], [2, 3], [4]]]
    assert places(waves(large, 50, in_batches=True)) == [[[0], [1], [2], [3], [4]]]
    assert places(waves(large, 0, in_batches=False)) == [[[0], [1], [2], [3], [4]]]


def test_a_batch_fits_with_what_stands_before_its_messages() -> None:
    """The session is written once more at its head: long names count."""
    session = "s" * 100
    message = Message(properties=Properties(message_id="m", group_id=session), data=[b"x" * 20]).encode()
    items = [Item(place, Home("orders", b"", session_id=session), message) for place in range(4)]
    for limit in range(300, 900):
        for chunk in waves(items, limit, in_batches=True)[0]:
            encoded = encode_batch([one.payload for one in chunk])
            assert len(chunk) == 1 or len(encoded) <= limit
    assert places(waves(items, 900, in_batches=True)) == [[[0, 1, 2, 3]]]


def test_a_batch_has_one_partition_key() -> None:
    """A partitioned entity files a batch whole, by the key of its first message."""

    def keyed(place: int, key: str) -> Item:
        annotations = {Symbol("x-opt-partition-key"): key}
        return Item(place, Home("orders", b""), Message(annotations=annotations, data=[b"x"]).encode())

    items = [keyed(0, "a"), item(1), keyed(2, "b"), keyed(3, "a"), item(4)]
    assert places(waves(items, 0, in_batches=True)) == [[[0, 3], [1, 4], [2]]]


def test_the_next_batch_of_a_lane_waits_for_the_one_before() -> None:
    """If the first is refused as busy, a second that is accepted would have overtaken it."""
    items = [item(n, size=100, sender="me", counter=n, session_id="s") for n in range(3)]
    assert places(waves(items, 250, in_batches=True)) == [[[0, 1]], [[2]]]
    assert places(waves(items, 250, in_batches=False)) == [[[0]], [[1]], [[2]]]


@given(
    st.lists(
        st.builds(
            item,
            st.integers(0, 0),
            size=st.integers(0, 300),
            session_id=st.sampled_from([None, "s", "t"]),
            sender=st.sampled_from([None, "me"]),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_every_message_is_sent_once_and_in_order_of_its_session(items: list[Item], in_batches: bool) -> None:
    """The order does not depend on the batches."""
    numbered = [one._replace(place=place) for place, one in enumerate(items)]
    sent = [one for chunks in waves(numbered, 500, in_batches=in_batches) for chunk in chunks for one in chunk]
    assert sorted(one.place for one in sent) == list(range(len(items)))
    for key in {(one.home.sender, one.home.session_id) for one in items}:
        lane = [one.place for one in sent if (one.home.sender, one.home.session_id) == key]
        assert lane == sorted(lane)


# ── order ──


def home(counter: int, **fields: object) -> Home:
    return Home("orders", b"", **{"sender": "me", "session_id": "s", "counter": counter, **fields})  # type: ignore[arg-type]


def may_go(lanes: Lanes, one: Home, now: float) -> bool:
    return bool(lanes.ready([Item(0, one, b"")], now))


def test_nothing_overtakes_an_earlier_message_that_waits() -> None:
    """Until that one is home, also in a later pass; other sessions and senders go on."""
    lanes = Lanes()
    lanes.waits(home(3), locked_until=60.0, now=0.0)
    assert not may_go(lanes, home(4), 1.0)
    assert may_go(lanes, home(3), 1.0)
    assert may_go(lanes, home(2), 1.0)
    assert may_go(lanes, home(4, session_id="t"), 1.0)
    assert may_go(lanes, home(4, sender="you"), 1.0)
    lanes.gone(home(3))
    assert may_go(lanes, home(4), 1.0)


def test_messages_that_waited_go_together_when_they_come_back() -> None:
    """A lane of a thousand messages must not take a thousand locks; a gap still stops it."""
    lanes = Lanes()
    for counter in (1, 2, 3, 4):
        lanes.waits(home(counter), locked_until=60.0, now=0.0)
    back = [Item(place, home(counter), b"") for place, counter in enumerate((1, 2, 4))]
    assert [one.home.counter for one in lanes.ready(back, 61.0)] == [1, 2]


def test_messages_without_an_order_hold_nobody_back() -> None:
    """Only senders that keep order count their messages; messages of others do not wait in a lane or free one."""
    lanes = Lanes()
    plain, ordered = item(0), item(1, sender="me", counter=2)
    lanes.waits(plain.home, 60.0, 0.0)
    assert not lanes._waiting and lanes.ready([plain, ordered], 1.0) == [plain, ordered]
    lanes.waits(item(2, sender="me", counter=1).home, 60.0, 1.0)
    lanes.gone(plain.home)
    assert lanes.ready([plain, ordered], 2.0) == [plain]


def test_message_that_never_comes_back_frees_its_lane() -> None:
    """Another receiver may have taken the message."""
    lanes = Lanes()
    lanes.waits(home(3), locked_until=60.0, now=0.0)
    assert not may_go(lanes, home(4), 60.0 + LANE_MEMORY_S)
    assert may_go(lanes, home(4), 60.1 + LANE_MEMORY_S)


def test_whatever_came_and_went_only_an_earlier_one_that_is_remembered_blocks() -> None:
    """Against a look at all of them."""
    chance = Random(7)
    for _ in range(50):
        lanes, waiting, now = Lanes(), dict[int, float](), 0.0
        for _ in range(200):
            now += chance.random() * 20
            counters = sorted(chance.sample(range(30), 4))
            ready = [one.home.counter for one in lanes.ready([Item(0, home(each), b"") for each in counters], now)]
            waiting = {each: until for each, until in waiting.items() if until >= now}
            going: set[int] = set()
            for each in counters:
                if all(earlier >= each or earlier in going for earlier in waiting):
                    going.add(each)
            assert ready == sorted(going)
            for each in counters:
                if chance.random() < 0.5:
                    lanes.waits(home(each), locked_until=now, now=now)
                    waiting[each] = now + LANE_MEMORY_S
                elif chance.random() < 0.7:
                    lanes.gone(home(each))
                    waiting.pop(each, None)


def test_lanes_of_which_nothing_comes_any_more_are_forgotten() -> None:
    """Senders come and go; memory must not remember all of them."""
    lanes = Lanes()
    for number in range(3 * LANES_LOOK):
        lanes.waits(home(1, sender=f"sender-{number}"), locked_until=float(number), now=float(number))
    assert len(lanes._waiting) < 2 * LANES_LOOK


def test_ordered_message_waits_for_queues_with_earlier_ones() -> None:
    """A queue that is not known yet may hold earlier messages; an empty one holds none; one of two always goes."""
    tide = Tide()
    items = [item(n, enqueued_ms=ms) for n, ms in enumerate((10, 20, 30))]
    assert tide.may_go(items, "a", ["b"]) == 0
    tide.read_to("b", item(0, enqueued_ms=25))
    assert tide.may_go(items, "a", ["b"]) == 2
    tide.read_to("b", item(0, enqueued_ms=20))
    assert tide.may_go(items, "a", ["b"]) == 2 and tide.may_go([item(0, enqueued_ms=20)], "b", ["a"]) == 0
    tide.read_to("a", item(0, enqueued_ms=20))
    assert tide.may_go(items[1:], "a", ["b"]) == 1 and tide.may_go([item(0, enqueued_ms=20)], "b", ["a"]) == 0
    tide.read_to("b", item(0, enqueued_ms=20, sender="me", counter=7))
    assert tide.may_go([item(0, enqueued_ms=20, sender="me", counter=8)], "a", ["b"]) == 0
    assert tide.may_go([item(0, enqueued_ms=20, sender="me", counter=6)], "a", ["b"]) == 1
    assert tide.may_go(items, "a", []) == 3


def test_queue_already_read_holds_back_only_later_messages() -> None:
    """Messages seen in any queue tell the time; a queue learns once that another waits for its next look."""
    tide = Tide()
    early, late = item(0, enqueued_ms=10, sender="me", counter=1), item(1, enqueued_ms=10, sender="me", counter=2)
    tide.saw([early, item(2, enqueued_ms=5, sender="you", counter=9)])
    tide.read_to_end("a")
    assert tide.may_go([early], "b", ["a"]) == 1 and not tide.was_awaited("a")
    assert tide.may_go([early, late], "b", ["a"]) == 1
    assert tide.was_awaited("a") and not tide.was_awaited("a") and not tide.was_awaited("b")


def test_message_without_order_never_sets_the_time_back() -> None:
    """It may be one that was locked, and is received again."""
    tide = Tide()
    tide.passed("a", item(0, enqueued_ms=20))
    tide.passed("a", item(0, enqueued_ms=10))
    assert tide.may_go([item(0, enqueued_ms=15), item(1, enqueued_ms=25)], "b", ["a"]) == 1


# ── pace ──


def test_a_budget_is_kept_over_any_second() -> None:
    """A burst of a tenth of a second's worth, then the rate."""
    budget = Budget(100.0)
    assert budget.take(10, 0.0) == 0.0
    assert budget.take(50, 0.0) == pytest.approx(0.5)
    assert budget.take(50, 1.0) == pytest.approx(0.4)
    assert budget.take(10, 60.0) == 0.0 and budget.take(10, 60.0) == pytest.approx(0.1)
    assert Budget(0.5).take(1, 0.0) == 0.0
    assert Budget(None).take(10**6, 0.0) == 0.0


def test_server_busy_halves_the_budget_and_it_recovers_slowly() -> None:
    """Live traffic needs the namespace too."""
    budget = Budget(100.0)
    budget.busy(0.0)
    assert budget.rate_per_s(0.0) == 50.0
    budget.busy(0.0)
    assert budget.rate_per_s(0.0) == 25.0
    assert budget.rate_per_s(5.0) == pytest.approx(50.0)
    assert budget.rate_per_s(60.0) == 100.0
    for _ in range(20):
        budget.busy(60.0)
    rate = budget.rate_per_s(60.0)
    assert rate is not None and rate > 1.0  # the budget never falls to 0


def test_what_was_sent_together_halves_the_budget_once() -> None:
    """Twenty refusals of sends of one moment count once; refusals of later sends count again."""
    budget = Budget(100.0)
    for _ in range(20):
        budget.busy(1.1, asked_at=1.0)
    assert budget.rate_per_s(1.1) == 50.0
    budget.busy(1.2, asked_at=1.15)
    assert budget.rate_per_s(1.2) == pytest.approx(25.0, abs=1.0)


def test_pause_doubles_until_a_pass_delivers() -> None:
    """An outage of hours must not cost a receive a second."""
    pauses = Pauses(1.0)
    assert [pauses.after(False) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 64, PAUSE_MAX_S, PAUSE_MAX_S]
    assert pauses.after(True) == 1.0
    assert pauses.after(False) == 1.0


def test_a_batch_is_what_can_be_moved_in_half_of_its_lock() -> None:
    """Otherwise locks run out on the way, and messages that were moved are received again."""
    size = BatchSize(100)
    assert size.next() == 100
    size.locked_for(30.0)
    size.moved(10, 10.0)
    assert size.next() == 15
    size.locked_for(2.0)
    assert size.next(allowed_per_s=0.5) == 1


def test_all_batches_in_hand_can_be_moved_in_half_a_lock() -> None:
    """Batches that wait behind others have their locks running too."""
    size = BatchSize(100, batches=4)
    assert size.next() == 100
    size.moved(10, 10.0)
    assert size.next() == 7
    assert size.next(allowed_per_s=1000.0) == 7


def test_load_is_half_a_second_of_messages_at_least_a_batch() -> None:
    """The fewer messages a syphon has in hand, the sooner it can stop."""
    size = BatchSize(100)
    assert size.shipment == 100
    size.moved(600, 1.0)
    assert size.shipment == 300
    size.moved(1_000_000, 1.0)
    assert size.shipment == 1000


def test_a_load_is_never_more_than_may_be_in_hand() -> None:
    """Ten messages a second, four loads in hand, a lock of a minute."""
    size = BatchSize(100, batches=4)
    size.moved(10, 1.0)
    assert size.next() == size.shipment == 75


def test_load_is_at_most_a_quarter_second_of_budget() -> None:
    """Live traffic would wait behind a larger load, and so would an operator who stops the syphon."""
    size = BatchSize(100, batches=4)
    size.moved(10_000, 1.0)
    assert size.next(allowed_per_s=800.0) == 100 and size.shipment == 200
    assert size.next(allowed_per_s=20.0) == size.shipment == 5
    assert size.next(allowed_per_s=0.001) == size.shipment == 1


def test_a_delivery_that_comes_after_its_lock_has_no_time_left() -> None:
    """A syphon that sends such a message home would duplicate it: another syphon has received it by now."""
    size = BatchSize(100)
    size.locked_for(59.0)
    size.locked_for(-5.0)
    assert size.lock_s == 0.0


def test_a_clock_that_is_wrong_is_told_from_a_late_delivery() -> None:
    """The longest lock is taken for a fresh one, and late deliveries are compared with it."""
    size = BatchSize(100)
    size.locked_for(-600.0)
    assert size.lock_s == 60.0
    size.locked_for(-640.0)
    assert size.lock_s == 20.0


# ── the rest ──


@pytest.mark.parametrize(
    ("path", "entity"),
    [
        ("orders", "orders"),
        ("orders/$DeadLetterQueue", "orders"),
        ("a/b/c/$deadletterqueue", "a/b/c"),
        ("news/Subscriptions/all/$DeadLetterQueue", "news"),
        ("news/subscriptions/all", "news"),
        ("orders/$Transfer/$DeadLetterQueue", "orders"),
    ],
)
def test_dead_letters_go_back_to_their_entity(path: str, entity: str) -> None:
    """A subscription cannot be sent to: its dead letters go back to the topic from which they came."""
    assert entity_of_dead_letters(path) == entity


def test_the_settings_are_those_of_the_options() -> None:
    """Names of options and names of settings meet in this one function."""
    options = SendAvailabilityPairedNamespaceOptions(
        syphon_retry_interval=5,
        missing_destination_grace=6,
        duplicate_detection_window=21,
        ttl_policy="deduct",
        max_messages_per_second=8,
    )
    assert SyphonSettings.of(options) == SyphonSettings(5, 6, 21, "deduct", 8)
