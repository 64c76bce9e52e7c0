"""The staging location: files that appear whole and once, one order of seals, and what may be removed when."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Long, Symbol, Timestamp
from pairbus.errors import ConfigError
from pairbus.spark.source.intake import SealTracker, TaskShare
from pairbus.spark.staging import stage_book
from pairbus.spark.staging.log import LogEntry, Staging
from pairbus.spark.staging.stage_book import StageBook
from pairbus.spark.staging.stage_file import StageWriter, identity_of, read_identities, read_payloads
from tests.storage.fixtures import PLACE

ENTITY = "contoso/orders"


@pytest.fixture
def staging(location: str) -> Staging:
    return Staging(location, PLACE)


def message(number: int, *, enqueued_ms: int = 1_000, message_id: str = "m") -> bytes:
    annotations = {Symbol("x-opt-sequence-number"): Long(number), Symbol("x-opt-enqueued-time"): Timestamp(enqueued_ms)}
    return Message(annotations=annotations, properties=Properties(message_id=message_id), data=[b"."]).encode()


def staged(staging: Staging, batch: int, partition: int, *numbers: int) -> StageWriter:
    stage = StageWriter(staging.storage, staging.new_stage(batch, partition))
    for number in numbers:
        stage.add(message(number), identity_of(message(number)))
    stage.finish()
    return stage


def tracker(book: StageBook, batch: int, partition: int) -> SealTracker:
    plan = book.plan(batch, [10, 10])
    book.refresh()
    unsure = tuple(book.unconfirmed)
    return SealTracker(book.staging, TaskShare(book.owner, batch, partition, 10, plan.head, unsure))


def test_location_that_hosts_cannot_share_names_the_option(tmp_path: Path) -> None:
    """A relative path means another folder in every process, a URL none at all."""
    for location, why in (("staging", "neither the absolute path"), ("s3://bucket/staging", "not supported yet")):
        with pytest.raises(ConfigError, match=f"option stagingLocation: .*{why}"):
            Staging(location)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"option stagingLocation: .* cannot be used"):
        Staging(str(tmp_path / "file" / "staging")).take(ENTITY)


def test_a_host_that_does_not_see_what_the_driver_wrote_says_so(staging: Staging, tmp_path: Path) -> None:
    """On a cluster a path exists everywhere and is often another disk: messages would be staged where nobody looks."""
    owner = staging.take(ENTITY)
    staging.check_visible(owner, wait_s=0.0)
    elsewhere = Staging(str(tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match=r"option stagingLocation: host .* does not see"):
        elsewhere.check_visible(owner, wait_s=0.0)
    elsewhere.take(ENTITY)
    with pytest.raises(ConfigError, match="does not see"):
        elsewhere.check_visible(owner, wait_s=0.0)


def test_a_location_has_one_query_and_one_entity(staging: Staging) -> None:
    """Two queries in one folder would read each other's batches."""
    first = staging.take(ENTITY)
    staging.check_owner(first)
    with pytest.raises(ConfigError, match="belongs to a stream of contoso/orders, not of contoso/bills"):
        staging.take("contoso/bills")
    second = staging.take(ENTITY)
    staging.check_owner(second)
    with pytest.raises(ConfigError, match="another query has taken"):
        staging.check_owner(first)


def test_a_stage_gives_back_what_was_put_into_it(staging: Staging) -> None:
    """In order, without the rows that another seal has, whatever a message looks like."""
    staging.take(ENTITY)
    payloads = [message(1), b"not AMQP", message(2, message_id="x" * 100), message(3)]
    stage = StageWriter(staging.storage, staging.new_stage(1, 0))
    for payload in payloads:
        stage.add(payload, identity_of(payload))
    stage.finish()
    assert [payload for batch in read_payloads(staging.storage, stage.name) for payload in batch] == payloads
    assert [payload for batch in read_payloads(staging.storage, stage.name, {0, 3}) for payload in batch] == payloads[
        1:3
    ]
    assert read_identities(staging.storage, stage.name) == {(1, 1_000, "m"), (2, 1_000, "x" * 100), (3, 1_000, "m")}


def test_what_one_seal_has_the_next_one_leaves_out(staging: Staging) -> None:
    """A lock ran out while its task slept: two tasks have one message, and whoever seals second goes without it."""
    book = StageBook(staging, ENTITY, 60.0)
    slow, quick = tracker(book, 1, 0), tracker(book, 1, 1)
    assert not slow.is_decided() and not quick.is_decided()
    first, second = staged(staging, 1, 0, 1, 2), staged(staging, 1, 1, 2, 3)
    assert quick.try_to_seal(second) == LogEntry(1, "seal", 1, 1, second.name, 2, (), ((2, 3),))
    sealed = slow.try_to_seal(first)
    assert sealed == LogEntry(2, "seal", 1, 0, first.name, 1, (1,), ((1, 2),))


def test_a_partition_is_sealed_once(staging: Staging) -> None:
    """A late attempt finds the seal of the other one, and its rows are the partition's rows."""
    book = StageBook(staging, ENTITY, 60.0)
    one, other = tracker(book, 1, 0), tracker(book, 1, 0)
    assert not one.is_decided() and not other.is_decided()
    ours = one.try_to_seal(staged(staging, 1, 0, 1))
    assert ours is not None
    assert other.try_to_seal(staged(staging, 1, 0, 2)) is None
    assert other.seal == ours


def test_nobody_seals_in_a_batch_that_is_committed(staging: Staging) -> None:
    """Spark will not look at it again: what a late attempt completed would be lost."""
    book = StageBook(staging, ENTITY, 60.0)
    late = tracker(book, 1, 0)
    assert not late.is_decided()
    book.commit(1)
    assert late.try_to_seal(staged(staging, 1, 0, 1)) is None
    assert late.seal is None and late.is_decided()


def test_an_attempt_so_late_that_the_log_is_cleaned_seals_nothing(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place of its entry is free again, and an entry there would be read by nobody."""
    monkeypatch.setattr(stage_book, "LOG_AGE_MIN_S", 0.0)
    book = StageBook(staging, ENTITY, 0.0)
    late = tracker(book, 1, 0)
    stage = staged(staging, 1, 0, 1)
    for batch in (1, 2):
        book.plan(batch, [10])
        book.commit(batch)
    assert staging.entry(1) is None, "the entry was removed by cleaning"
    assert late.try_to_seal(stage) is None
    assert late.seal is None
    assert staging.entry(1) is None


def test_a_plan_never_changes(staging: Staging) -> None:
    """A repeated batch has the tasks of the first time, also when options have changed since."""
    plan = StageBook(staging, ENTITY, 60.0).plan(1, [5, 5])
    assert StageBook(staging, ENTITY, 60.0).plan(1, [10]) == plan


def test_messages_sealed_for_a_lost_batch_enter_the_next(staging: Staging) -> None:
    """The checkpoint is lost; the messages are gone from the queue and must not be lost with it."""
    book = StageBook(staging, ENTITY, 60.0)
    assert book.first_offset() == 0
    first = tracker(book, 1, 0).try_to_seal(staged(staging, 1, 0, 1))
    assert first is not None
    staging.note_read(1, first.number)
    book.commit(1)
    seal = tracker(book, 2, 0).try_to_seal(staged(staging, 2, 0, 2))
    assert seal is not None
    late = tracker(book, 2, 1)
    again = StageBook(staging, ENTITY, 60.0)
    assert again.first_offset() == again.first_offset() == 3
    assert again.has_abandoned(4)
    again.commit(3)
    assert again.plan(4, [10]).adopted == (seal.number,)
    assert late.try_to_seal(staged(staging, 2, 1, 7)) is None, "no seal is added after the micro-batch was adopted"


def test_stages_go_when_their_batch_was_committed_for_long_enough(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before, not while messages of a seal may still be in the queue, and a start reads what is left."""
    book = StageBook(staging, ENTITY, 100.0)
    for batch in (1, 2, 3):
        seal = tracker(book, batch, 0).try_to_seal(staged(staging, batch, 0, batch))
        assert seal is not None
        staging.note_read(batch, seal.number)
        if batch != 2:
            staging.confirm(seal.number)
        if batch != 3:
            book.commit(batch)
    (commit,) = [name for name in staging.storage.list("commits/") if name.startswith("0000000004-0000000002-")]
    now = int(commit.rpartition("-")[2]) / 1000
    book.clean(now + 99)
    assert len(staging.storage.list("stages/")) == 3
    book.clean(now + 200)
    assert staging.numbers("stages") == [2, 3]
    assert staging.has_plan(1), "the small files stay for longer"
    book.clean(now + 200 + stage_book.LOG_AGE_MIN_S)
    assert not staging.has_plan(1) and staging.has_plan(3)
    assert staging.numbers("log") == [3, 4, 5]
    again = StageBook(staging, ENTITY, 100.0)
    assert (again.head, again.committed, again.unconfirmed) == (5, 2, {3})
    with pytest.raises(ConfigError, match="stageRetentionSeconds"):
        again.plan(1, [10])
