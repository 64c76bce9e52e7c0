"""Publishing: which subscription gets which copies, in one commit, and what a topic stores of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest

from pairbus.amqp.types import Described, Symbol, encode_pair
from pairbus.broker.description import RuleDescription
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.entity import RETRY_PAUSE_MS
from pairbus.broker.entities.publication import FILTER_FAILED, Publication
from pairbus.broker.entities.queue import Outcome
from pairbus.broker.entities.subscription import Rule
from pairbus.broker.refusal import Refusal
from pairbus.broker.store import UNLIMITED, Insert, Loaded, StoredMessage
from pairbus.filters import CorrelationFilter, FalseFilter, Filter, SqlAction, SqlFilter, TrueFilter
from tests.broker.queue_world import DISK_FULL, PENDING, Answer
from tests.broker.topic_world import TopicWorld, draft, sql, text_of

TWO: dict[str, dict[str, Any]] = {"a": {}, "b": {}}


def test_every_matching_subscription_has_its_copy_after_one_commit() -> None:
    """Accepted means that no subscription can miss the message any more; before the commit no receiver sees it."""
    world = TopicWorld(
        {"all": {}, "red": {}, "none": {}, "blue": {}},
        {"red": [(SqlFilter("color = 'red'"), None)], "blue": [(SqlFilter("color = 'blue'"), None)], "none": []},
    )
    answer = world.offer(draft("1", color="red"))
    assert (answer.value, world.texts("all")) == (PENDING, [])
    world.store.commit()
    assert answer.value is None
    assert {name: world.texts(name) for name in ("all", "red", "none", "blue")} == {
        "all": ["1"],
        "red": ["1"],
        "none": [],
        "blue": [],
    }
    assert set(world.ready) >= {world["all"].main, world["red"].main}


def test_a_copy_has_a_number_of_its_subscription_and_remembers_the_topics() -> None:
    """Numbers are contiguous within each subscription, and do not depend on other subscriptions."""
    world = TopicWorld(TWO, {"b": [(SqlFilter("n = 2"), None)]})
    for n in (1, 2, 3):
        world.send(draft(f"{n}", n=n))
    assert [(lock.message.seq, lock.message.origin_seq) for lock in world.locks("a")] == [(1, 1), (2, 2), (3, 3)]
    assert [(lock.message.seq, lock.message.origin_seq) for lock in world.locks("b")] == [(1, 2)]
    world.restart()
    assert [(lock.message.seq, lock.message.origin_seq) for lock in world.locks("b")] == [(1, 2)]


def test_a_send_that_nobody_wants_is_accepted_and_gone() -> None:
    """A topic without a matching subscription swallows messages; that is no error."""
    world = TopicWorld({"none": {}}, {"none": [(FalseFilter(), None)]})
    world.send(draft("1"))
    assert (world.topic.size_bytes, world.stored_bytes()) == (0, 0)
    assert TopicWorld({}).offer(draft("1")).value is PENDING


def test_rules_with_actions_make_copies_of_their_own() -> None:
    """Two rules with actions and two plain ones that all match are three messages."""
    rules: list[tuple[Filter, SqlAction | None]] = [
        (TrueFilter(), SqlAction("SET seen = 1")),
        (TrueFilter(), None),
        (SqlFilter("1 = 1"), None),
        (TrueFilter(), SqlAction("SET sys.MessageId = 'other'")),
    ]
    world = TopicWorld({"a": {}, "plain": {}}, {"a": rules})
    world.send(draft("1", color="red"))
    messages = [lock.message for lock in world.locks("a")]
    assert sorted(bool(message.payload) for message in messages) == [False, False, True]
    assert sorted(message.message_id for message in messages) == ["1", "1", "other"]
    assert {text_of(message.body) for message in messages} == {"1"}
    [plain] = world.locks("plain")
    assert plain.message.payload
    assert world.topic.size_bytes == world.stored_bytes()


@pytest.mark.parametrize("dead_letters", [True, False])
def test_a_failing_filter_costs_its_own_subscription_only(dead_letters: bool) -> None:
    """The copy is dead-lettered with the reason, or dropped for this subscription; the send succeeds."""
    world = TopicWorld(
        {"bad": {"dead_letter_on_filter_error": dead_letters}, "good": {}}, {"bad": [(SqlFilter("10 / n = 1"), None)]}
    )
    world.send(draft("1", n=0))
    world.send(draft("2", n=10))
    assert world.texts("good") == ["1", "2"]
    assert world.texts("bad") == ["2"]
    dead = [lock.message for lock in world.locks("bad", dead=True)]
    assert [text_of(message.body) for message in dead] == (["1"] if dead_letters else [])
    assert all(message.patch.startswith(encode_pair("DeadLetterReason", FILTER_FAILED)) for message in dead)
    assert all(b"rule0" in message.patch for message in dead)
    world.restart()
    assert world["bad"].dead_count == (1 if dead_letters else 0)


def test_the_time_to_live_is_the_lowest_of_message_topic_and_subscription() -> None:
    """Expiry is decided for each subscription; the payload stays until the last copy is gone."""
    world = TopicWorld(
        {"long": {}, "short": {"default_ttl_ms": 1_000, "dead_letter_on_expiration": True}}, default_ttl_ms=5_000
    )
    world.send(draft("1", ttl_ms=60_000), draft("2", ttl_ms=500))
    world.pass_ms(500)
    assert [world[name].active_count for name in ("long", "short")] == [1, 1]
    world.pass_ms(500)
    assert [world[name].active_count for name in ("long", "short")] == [1, 0]
    assert world["short"].dead_count == 2
    world.restart()
    world.pass_ms(4_000)
    assert (world["long"].active_count, world["short"].dead_count) == (0, 2)
    assert world.texts("short", dead=True) == ["1", "2"]
    assert world.topic.size_bytes == world.stored_bytes()


# ── payloads and the quota ──


def test_a_payload_counts_once_until_its_last_copy_is_gone() -> None:
    """Any number of subscriptions may hold the payload, in any box; after a restart the size is the same."""
    world = TopicWorld({"a": {}, "b": {}, "c": {}})
    body = draft("x" * 200)
    world.send(body)
    one = len(body.body)
    assert world.topic.size_bytes == world.stored_bytes() == one
    [first], [second], [third] = (world.locks(name) for name in "abc")
    world.complete("a", first)
    assert world.topic.size_bytes == one
    answer = Answer()
    world["b"].settle(world["b"].main, second.token, Outcome.DEAD_LETTER, world.now, answer, patch=b"why")
    world.store.commit()
    assert world.topic.size_bytes == world.stored_bytes() == one + 3
    world.restart()
    assert world.topic.size_bytes == world.stored_bytes() == one + 3
    [third] = world.locks("c")
    world.complete("c", third)
    assert world.topic.size_bytes == one + 3
    [dead] = world.locks("b", dead=True)
    assert text_of(dead.message.body) == "x" * 200
    answer = Answer()
    world["b"].complete_many(world["b"].dead, [dead.token], world.now, answer)
    world.store.commit()
    assert (world.topic.size_bytes, world.stored_bytes(), list(world.store.payloads())) == (0, 0, [])


def test_a_single_copy_has_its_body_and_no_payload() -> None:
    """A row with the body is cheaper than a row and a payload."""
    world = TopicWorld(TWO, {"b": [(FalseFilter(), None)]})
    world.send(draft("1"))
    assert list(world.store.payloads()) == []
    assert world.topic.size_bytes == world.stored_bytes() > 0
    assert world.texts("a") == ["1"]


def test_a_full_topic_refuses_and_uncommitted_copies_count() -> None:
    """Dead letters of a subscription count too."""
    world = TopicWorld(TWO, max_size_mb=1)
    big = Draft(bytes(1 << 20), message_id="big")
    world.offer(big)
    with pytest.raises(Refusal, match="maximum size of 1 MB") as refused:
        world.offer(draft("2"))
    assert refused.value.condition == "amqp:resource-limit-exceeded"
    world.store.commit()
    for name in ("a", "b"):
        with pytest.raises(Refusal, match="maximum size"):
            world.offer(draft("2"))
        world.complete(name, *world.locks(name))
    world.send(draft("3"))


@pytest.mark.parametrize("end", ["failed", "killed"])
def test_a_send_that_is_not_committed_leaves_nothing_in_any_subscription(end: str) -> None:
    """One commit for all copies: there is no half of a publication."""
    world = TopicWorld({"a": {}, "b": {}, "c": {}})
    world.send(draft("before"))
    answer = world.offer(draft("lost"), draft("later", scheduled_ms=world.now + 5))
    if end == "failed":
        world.store.fail_next(DISK_FULL)
        world.store.commit()
        assert answer.condition == "amqp:internal-error"
    else:
        world.restart()
    assert world.topic.size_bytes == world.stored_bytes()
    world.pass_ms(10)
    world.send(draft("after"))
    assert {name: world.texts(name) for name in "abc"} == {name: ["before", "after"] for name in "abc"}


# ── status, duplicates, scheduled messages ──


def test_a_disabled_topic_refuses_and_a_disabled_subscription_still_collects() -> None:
    """A subscription never misses a message that its topic accepted; it gives nothing out meanwhile."""
    world = TopicWorld({"a": {"status": "ReceiveDisabled"}})
    world.send(draft("1"))
    assert (world["a"].active_count, world.texts("a")) == (1, [])
    with pytest.raises(Refusal, match="status ReceiveDisabled"):
        world["a"].check_receive()
    with pytest.raises(Refusal, match="status SendDisabled"):
        TopicWorld(TWO, status="SendDisabled").offer(draft("1"))


def test_a_duplicate_is_accepted_and_reaches_nobody() -> None:
    """The window is the topic's; it outlives a restart."""
    world = TopicWorld(TWO, requires_duplicate_detection=True)
    world.send(draft("1", message_id="m"))
    again = world.offer(draft("2", message_id="m")), world.offer(draft("3", message_id="n"))
    world.store.commit()
    assert [answer.value for answer in again] == [None, None]
    world.restart()
    world.send(draft("4", message_id="n"))
    assert world.texts("a") == world.texts("b") == ["1", "3"]


def test_rules_of_a_scheduled_message_are_evaluated_when_its_time_comes() -> None:
    """A rule that is added meanwhile counts; its number belongs to the topic, and it can be cancelled."""
    world = TopicWorld(TWO, {"b": [(CorrelationFilter(label="no"), None)]})
    answer = Answer()
    drafts = [draft(text, scheduled_ms=world.now + 1_000) for text in ("1", "2", "3")]
    world.topic.schedule(drafts, world.now, answer)
    world.store.commit()
    assert answer.value == [1, 2, 3]
    assert (world.topic.scheduled_count, world.topic.size_bytes) == (3, world.stored_bytes())
    cancelled = Answer()
    world.topic.cancel_scheduled([2], world.now, cancelled)
    world.store.commit()
    assert cancelled.value is None
    world.restart()
    world._rules = {}
    world.restart()
    world.pass_ms(1_000)
    assert world.topic.scheduled_count == 0
    locks = {name: world.locks(name) for name in ("a", "b")}
    assert {name: [text_of(lock.message.body) for lock in found] for name, found in locks.items()} == {
        "a": ["1", "3"],
        "b": ["1", "3"],
    }
    assert [lock.message.origin_seq for lock in locks["b"]] == [4, 5]
    assert [lock.message.enqueued_ms for lock in locks["a"]] == [world.now] * 2
    assert world.topic.size_bytes == world.stored_bytes()


def test_an_activation_that_failed_is_tried_again_and_publishes_once() -> None:
    """Until then the message is scheduled in the topic and in no subscription."""
    world = TopicWorld(TWO)
    world.send(draft("1", scheduled_ms=world.now + 100))
    world.now += 100
    world.topic.run_due(world.now)
    world.store.fail_next(DISK_FULL)
    world.store.commit()
    assert (world.topic.scheduled_count, world.texts("a")) == (1, [])
    assert world.topic.size_bytes == world.stored_bytes()
    world.pass_ms(1_000)
    assert (world.texts("a"), world.texts("b"), world.topic.scheduled_count) == (["1"], ["1"], 0)
    assert world.topic.size_bytes == world.stored_bytes()


def test_scheduled_messages_that_cannot_be_read_are_tried_again() -> None:
    """The store reports the failure; the message is published once, when it can be read."""
    world = TopicWorld({"a": {}})
    world.send(draft("later", scheduled_ms=world.now + 100))
    load = world.store.load

    def failing(box: int, numbers: Sequence[int], size_max: int = UNLIMITED, *, with_bodies: bool = True) -> Loaded:
        world.store.load = load  # type: ignore[method-assign]
        raise DISK_FULL

    world.store.load = failing  # type: ignore[method-assign]
    world.pass_ms(100)
    assert (world.topic.scheduled_count, world.texts("a")) == (1, [])
    world.pass_ms(RETRY_PAUSE_MS)
    assert (world.topic.scheduled_count, world.texts("a")) == (0, ["later"])


def test_a_damaged_scheduled_message_is_left_out() -> None:
    """The store reports it; the topic goes on."""
    world = TopicWorld({"a": {}})
    world.send(draft("damaged", scheduled_ms=world.now + 100))
    world.store._rows.clear()
    world.pass_ms(100)
    assert (world.topic.scheduled_count, world.topic.next_due_ms()) == (0, None)
    world.send(draft("intact"))
    assert world.texts("a") == ["intact"]


def test_copy_without_a_session_id_is_dead_where_sessions_are_required() -> None:
    """The copy could not be received there; an action of a rule may give it a session id, or take its id away."""
    named = (TrueFilter(), SqlAction("SET sys.SessionId = 'given'"))
    world = TopicWorld(
        {"plain": {}, "held": {"requires_session": True}, "named": {"requires_session": True}}, {"named": [named]}
    )
    world.send(draft("1"), draft("2", session_id="s"))
    assert world.texts("plain") == ["1", "2"]
    assert world.texts("held", dead=True) == ["1"]
    held, given = world["held"].main.sessions, world["named"].main.sessions
    assert held is not None and given is not None
    assert (held.listed(None, 0, 9), given.listed(None, 0, 9)) == (["s"], ["given"])
    assert world["named"].dead_count == 0


def test_empty_session_id_is_a_session_also_when_it_was_scheduled_or_set() -> None:
    """A row does not tell the empty id from none; the message does, after a restart too. A message that names no
    session is dead where an action has not given it one."""
    empty = (TrueFilter(), SqlAction("SET sys.SessionId = ''"))
    removed = (TrueFilter(), SqlAction("REMOVE sys.SessionId"))
    rules: dict[str, list[tuple[Filter, SqlAction | None]]] = {"empty": [empty], "removed": [removed]}
    world = TopicWorld({name: {"requires_session": True} for name in ("plain", "empty", "removed")}, rules)
    later = world.now + 100
    world.send(draft("1", session_id=""), draft("2"))
    world.send(draft("3", session_id="", scheduled_ms=later), draft("4", scheduled_ms=later))
    world.restart()
    world.pass_ms(100)
    counts = {name: (world[name].active_count, world[name].dead_count) for name in ("plain", "empty", "removed")}
    assert counts == {"plain": (2, 2), "empty": (4, 0), "removed": (0, 4)}
    for name in ("plain", "empty"):
        sessions = world[name].main.sessions
        assert sessions is not None and sessions.listed(None, 0, 9) == [""]


@pytest.mark.parametrize("cause", ["session id", "filter"])
def test_dead_letters_of_a_batch_are_peeked_page_by_page(cause: str) -> None:
    """A client asks for the next page by the last sequence number it has seen. A message that a receiver dead-letters
    once came before those that were dead at once, whatever their numbers, and the pages left these out."""
    world = TopicWorld(
        {"a": {"requires_session": cause == "session id", "dead_letter_on_filter_error": True}},
        {"a": [(SqlFilter("1 / n = 1"), None)]},
    )
    held: dict[str, Any] = {"session_id": "s", "n": 1}
    dead: dict[str, Any] = {"n": 1} if cause == "session id" else {"session_id": "s", "n": 0}
    world.send(draft("1", **held), draft("2", **dead), draft("3", **held), draft("4", **dead))
    box, subscription = world["a"].main, world["a"]
    hold = None if subscription.sessions is None else subscription.sessions.accept("s", _Receiver(), world.now)
    locks = box.lock_next(2, world.now, None if hold is None else hold.session)
    assert [text_of(lock.message.body) for lock in locks] == ["1", "3"]
    subscription.settle(box, locks[1].token, Outcome.DEAD_LETTER, world.now, Answer())
    world.store.commit()
    for _ in range(2):
        seen: list[StoredMessage] = []
        while page := world["a"].peek(world["a"].dead, seen[-1].seq + 1 if seen else 1, 1, world.now):
            seen += page
        assert [(text_of(message.body), message.seq) for message in seen] == [("2", 2), ("3", 3), ("4", 4)]
        world.restart()


def test_dead_letters_in_another_order_are_all_received() -> None:
    """Stores of code before release 0.4 may have them. A peek from the first number shows all of them too; only pages
    that begin behind it may leave some out."""
    world = TopicWorld({"a": {}})
    numbers = {1: 3, 2: 1, 3: 4, 4: 2}
    rows = [StoredMessage(seq, draft(str(seq)).body, n=n) for n, seq in numbers.items()]
    assert world.store.number(len(rows)) == 1
    world.store.write(Insert(world["a"].dead.number, rows))
    world.store.commit()
    world.restart()
    assert len(world["a"].peek(world["a"].dead, 1, 10, world.now)) == world["a"].dead_count == 4
    for seq in range(1, 6):
        world["a"].peek(world["a"].dead, seq, 10, world.now)
    locks = world.locks("a", dead=True)
    assert sorted(lock.message.seq for lock in locks) == [1, 2, 3, 4]
    world["a"].complete_many(world["a"].dead, [lock.token for lock in locks], world.now, Answer())
    world.store.commit()
    assert (world["a"].dead_count, list(world.store.index())) == (0, [])


class _Receiver:
    """A receiver that never loses its session."""

    def session_lost(self) -> None:
        raise AssertionError("the lock of the session ended")


def test_a_rule_that_is_added_selects_from_then_on() -> None:
    """The rules that were there before go on as they are."""
    world = TopicWorld({"a": {}}, {"a": [(sql("colour = 'red'"), None)]})
    drafts = [draft("red", colour="red"), draft("blue", colour="blue")]
    world.send(*drafts)
    world["a"].put_rule(Rule(0, RuleDescription("prices", "a", "blue", sql("colour = 'blue'"), None)))
    world.send(*drafts)
    assert world.texts("a") == ["red", "red", "blue"]
    world["a"].drop_rule("RULE0")
    world.send(*drafts)
    assert world.texts("a") == ["blue"]


def test_a_subscription_that_stops_leaves_what_falls_due() -> None:
    """The store is about to be closed; the next start removes the expired message."""
    world = TopicWorld({"a": {}})
    world.send(draft("1", ttl_ms=100))
    world.now += 100
    world["a"].stop()
    world["a"].run_due(world.now)
    assert not world.store._writes
    world.restart()
    assert world["a"].active_count == 0


def test_idle_times_of_a_topic_and_of_its_subscription() -> None:
    """A send does not keep a subscription alive that has no receiver. The use of a subscription counts for its topic
    when the topic's time has come (tests/kit/test_clock.py)."""
    world = TopicWorld({"a": {"auto_delete_on_idle_ms": 300_000}}, auto_delete_on_idle_ms=400_000)
    start = world.now
    world.now += 1_000
    world.send(draft("1"))
    assert world.topic.idle_until_ms == world.now + 400_000
    assert world["a"].idle_until_ms == start + 300_000
    world.now += 1_000
    world.locks("a")
    assert world["a"].idle_until_ms == world.now + 300_000
    assert world["a"].accessed_ms == world.now
    world.send(draft("2", scheduled_ms=world.now + 5_000))
    assert world.topic.idle_until_ms is None


@pytest.mark.parametrize("is_scheduled", [False, True])
def test_strange_time_in_a_message_breaks_no_rule(is_scheduled: bool) -> None:
    """A duration that is no number once made the evaluation raise: a scheduled message was never published then, and
    an id was remembered without its message."""
    rules: list[tuple[Filter, SqlAction | None]] = [(SqlFilter("t > 1"), None), (TrueFilter(), SqlAction("SET u = t"))]
    world = TopicWorld(TWO, {"b": rules}, requires_duplicate_detection=True)
    strange = Described(Symbol("com.microsoft:timespan"), math.nan)
    world.send(draft("1", t=strange, scheduled_ms=world.now + 100 if is_scheduled else 0))
    world.pass_ms(100)
    assert (world.texts("a"), world.texts("b"), world.topic.scheduled_count) == (["1"], ["1"], 0)


def test_failing_publication_leaves_nothing_behind() -> None:
    """A bug while the copies are made writes nothing and remembers no id, so the sender may try again."""
    world = TopicWorld(TWO, requires_duplicate_detection=True)
    with patch.object(Publication, "_copy", side_effect=RuntimeError("bug")), pytest.raises(RuntimeError, match="bug"):
        world.offer(draft("1"))
    assert not world.store._writes
    world.send(draft("1"))
    assert world.texts("a") == world.texts("b") == ["1"]


def test_failing_activation_is_tried_again() -> None:
    """A bug while scheduled messages are published leaves them scheduled: they are neither lost nor stuck."""
    world = TopicWorld(TWO)
    world.send(draft("1", scheduled_ms=world.now + 100))
    world.now += 100
    with patch.object(Publication, "_copy", side_effect=RuntimeError("bug")), pytest.raises(RuntimeError, match="bug"):
        world.topic.run_due(world.now)
    assert not world.store._writes and not world.topic.is_catching_up
    assert world.topic.next_due_ms() == world.now + RETRY_PAUSE_MS
    world.pass_ms(RETRY_PAUSE_MS)
    assert (world.texts("a"), world.texts("b"), world.topic.scheduled_count) == (["1"], ["1"], 0)


def test_what_it_prints_tells_its_state() -> None:
    """The texts are for a person who reads a log at night."""
    world = TopicWorld({"a": {}})
    world.send(draft("1"))
    assert repr(world.topic) == "<Topic prices Active subscriptions=1>"
    assert repr(world["a"]) == "<Subscription prices/Subscriptions/a Active rules=1 active=1 dead=0 deferred=0>"


@pytest.mark.parametrize("matches", [True, False])
def test_numbers_of_a_topic_go_on_after_a_restart(matches: bool) -> None:
    """Also when no subscription selected the messages, or all of them are gone: a number is never given twice."""
    rules: dict[str, list[tuple[Filter, SqlAction | None]]] = {"a": [(sql("1 = 1" if matches else "1 = 0"), None)]}
    world = TopicWorld({"a": {}}, rules)
    world.send(draft("1"), draft("2"))
    world.send(draft("3"))
    answer = Answer()
    world.topic.schedule([draft("later", scheduled_ms=world.now + 1)], world.now, answer)
    world.store.commit()
    assert answer.value == [4]
    world.pass_ms(1)
    world.complete("a", *world.locks("a"))
    world.restart()
    assert world.topic.last_seq == 5
    world.send(draft("6"))
    assert world.topic.last_seq == 6
