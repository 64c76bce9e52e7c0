"""Clients and brokers name topics, subscriptions and session queues alike, and count the same operations of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus import PairedServiceBusClient
from pairbus.ledger import read
from pairbus.ledger.prices import PriceSheet, load
from tests.brokers import BrokerProcess
from tests.report.test_reconciliation import sums

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENTITIES = {
    "Queues": [{"Name": "cases", "Properties": {"RequiresSession": True}}],
    "Topics": [{"Name": "news", "Subscriptions": [{"Name": "all"}, {"Name": "others"}]}],
}
CONFIG = {"UserConfig": {"Namespaces": [{"Name": "primary", **ENTITIES}]}}

pytestmark = pytest.mark.slow


def receive(receiver: Any, count: int) -> None:
    with receiver:
        while count:
            for message in receiver.receive_messages(count, max_wait_time=10):
                receiver.complete_message(message)
                count -= 1


def test_both_ends_count_the_same_of_topics_subscriptions_and_sessions(tmp_path: Path) -> None:
    """A send to a topic is one operation, however many subscriptions get it; a receive belongs to the subscription."""
    meters = ("--meter", str(tmp_path / "meter"))
    with (
        BrokerProcess(tmp_path / "primary", namespaces=["primary"], config=CONFIG, options=meters) as primary,
        BrokerProcess(tmp_path / "secondary", namespaces=["secondary"], options=meters) as secondary,
    ):
        strings = primary.connection_string("primary"), secondary.connection_string("secondary")
        with PairedServiceBusClient.from_connection_strings(
            *strings, primary_name="primary", backlog_queue_count=1, ledger=tmp_path / "ledger"
        ) as client:
            for sender in (client.get_topic_sender("news"), client.get_queue_sender("cases")):
                sender.send_messages(ServiceBusMessage(b"1", session_id="s"))
                sender.send_messages([ServiceBusMessage(b"x" * 70_000, session_id="s") for _ in range(2)])
            receive(client.get_subscription_receiver("news", "all"), 3)
            receive(client.get_queue_receiver("cases", session_id="s"), 3)
        assert (primary.terminate(), secondary.terminate()) == (0, 0)
    clients, brokers = sums(read(tmp_path / "ledger")), sums(read(tmp_path / "meter"))
    assert clients == brokers
    assert clients["primary", "news", "send"] == clients["primary", "cases", "send"] == (3, 5)
    for entity in ("news/Subscriptions/all", "cases"):
        assert clients["primary", entity, "receive"][0] == clients["primary", entity, "complete"][0] == 3
    assert not any("others" in entity for _, entity, _ in clients)


@pytest.mark.spark
def test_a_report_tells_what_became_of_messages_for_topics_and_sessions(
    spark: SparkSession, sheet: PriceSheet, tmp_path: Path
) -> None:
    """Sent, diverted by hand, moved home: each under the name of its topic or queue, whatever subscriptions it has."""
    from pairbus.report.job import make_report

    config = {"UserConfig": {"Namespaces": [{"Name": "primary", **ENTITIES}, {"Name": "secondary"}]}}
    with BrokerProcess(tmp_path / "data", namespaces=["primary", "secondary"], config=config) as broker:
        strings = broker.connection_string("primary"), broker.connection_string("secondary")
        with PairedServiceBusClient.from_connection_strings(
            *strings, primary_name="primary", backlog_queue_count=1, enable_syphon=True, ledger=tmp_path / "ledger"
        ) as client:
            for entity, sender in (
                ("news", client.get_topic_sender("news")),
                ("cases", client.get_queue_sender("cases")),
            ):
                sender.send_messages(ServiceBusMessage(b"1", session_id="s"))
                client.force_failover(entity)
                sender.send_messages([ServiceBusMessage(b"2", session_id="s") for _ in range(2)])
                client.force_healthy(entity)
            receive(client.get_subscription_receiver("news", "all"), 3)
            receive(client.get_queue_receiver("cases", session_id="s"), 3)
    report = make_report(spark, [tmp_path / "ledger"], prices=sheet, geo=load("geo-replication"), now_s=time.time())
    found = {each.entity: (each.sent, each.diverted, each.moved, each.failed) for each in report.availability.entities}
    assert found == {"news": (1, 2, 2, 0), "cases": (1, 2, 2, 0)}
    assert {outage.entity for outage in report.availability.outages if outage.forced} == {"news", "cases"}
    billed = {line.entity for line in report.bill.lines if line.side == "primary"}
    assert billed == {"news", "news/subscriptions/all", "cases"}, "paths compare without case"
