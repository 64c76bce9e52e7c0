"""Subscriptions: their names come through. The embedded broker has no topics; to source and service they are paths."""

from __future__ import annotations

from pathlib import Path

from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.queues import bodies_in, dead_letter
from tests.spark.stream_world import new_stream

SUBSCRIPTION = "news/Subscriptions/sports"


def test_a_subscription_and_its_dead_letters_are_streams_of_their_own(
    broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """Rows say the path as it was given, so that they can be told from those of the topic's other subscriptions."""
    make_queue(SUBSCRIPTION)
    stream = new_stream(broker, SUBSCRIPTION, tmp_path, partitions="1")
    stream.send("a", "b", "c")
    dead_letter(broker, SUBSCRIPTION, 1)
    (partition,) = stream.begin()
    rows = [row for batch in stream.task(partition) for row in batch.to_pylist()]
    assert [(row["entity"], row["body"]) for row in rows] == [(SUBSCRIPTION, b"b"), (SUBSCRIPTION, b"c")]
    dead = new_stream(broker, SUBSCRIPTION, tmp_path, partitions="1", subQueue="deadletter")
    (partition,) = dead.begin()
    (row,) = [row for batch in dead.task(partition) for row in batch.to_pylist()]
    assert (row["entity"], row["body"], row["dead_letter_reason"]) == (SUBSCRIPTION, b"a", "spoiled")
    assert bodies_in(broker, SUBSCRIPTION) == bodies_in(broker, f"{SUBSCRIPTION}/$DeadLetterQueue") == []
