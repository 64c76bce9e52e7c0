"""The sections of `python -m bench`: each makes some measurements, and shows them as tables."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, NamedTuple

from rich.table import Table
from tools import rabbitmq

from bench.brokers import Measured, PairbusBroker, RabbitMQBroker
from bench.client import TURNS, client_tables, measure_client
from bench.fanout import fanout_table, measure_fanout
from bench.footprint import Deep, Start, measure_deep, measure_start
from bench.latency import latency_table, measure_latency
from bench.metering import measure_metering, metering_tables
from bench.namespace import deletion_table, many_table, measure_deletion, measure_many
from bench.processor import measure_processor, processor_table
from bench.receiving import measure_receiving, receiving_table
from bench.report import measure_report, report_table
from bench.sessions import measure_sessions, sessions_table
from bench.shared_sender import measure_shared, shared_table
from bench.spark import measure_spark, spark_tables
from bench.syphon import measure_syphon, syphon_table
from bench.throughput import Rate, measure

RATIO_WANTED = {"send": 1.5, "receive-ranges": 1.5}
CPU_US_WANTED = 30.0


class Shown(NamedTuple):
    """The outcome of a section."""

    results: dict[str, Any]
    "Values for the JSON file."
    parts: list[Table | str]
    "Tables and notes for the screen."


def _start(options: Namespace) -> Shown:
    start = measure_start()
    return Shown({"start": asdict(start)}, [_start_table(start)])


def _throughput(options: Namespace) -> Shown:
    reason = rabbitmq.available()
    with ExitStack() as stack:
        brokers: list[Measured] = [stack.enter_context(PairbusBroker())]
        if reason is None:
            brokers.append(RabbitMQBroker(stack.enter_context(rabbitmq.RabbitMQ())))
        rates = measure(brokers, options.count, options.rounds)
    note = f"RabbitMQ {rabbitmq.version()}" if reason is None else f"RabbitMQ was not measured: {reason}"
    results = {"throughput": [asdict(rate) for rate in rates], "rabbitmq": note}
    return Shown(results, [_throughput_table(rates), note])


def _latency(options: Namespace) -> Shown:
    rows = measure_latency(options.count // 50)
    return Shown({"latency": [asdict(row) for row in rows]}, [latency_table(rows)])


def _deep(options: Namespace) -> Shown:
    deep = measure_deep(options.waiting, options.count // 2, options.rounds)
    return Shown({"deep": asdict(deep)}, [_deep_table(deep)])


def _fanout(options: Namespace) -> Shown:
    fanout = measure_fanout(options.count // 20)
    return Shown({"fanout": asdict(fanout)}, [fanout_table(fanout)])


def _sessions(options: Namespace) -> Shown:
    sessions = measure_sessions(options.count // 100, 100, options.count, 200)
    return Shown({"sessions": asdict(sessions)}, [sessions_table(sessions)])


def _many(options: Namespace) -> Shown:
    many = measure_many()
    return Shown({"many": asdict(many)}, [many_table(many)])


def _deletion(options: Namespace) -> Shown:
    deletion = measure_deletion(options.waiting)
    return Shown({"deletion": asdict(deletion)}, [deletion_table(deletion)])


def _client(options: Namespace) -> Shown:
    client, receiving = measure_client(options.rounds), measure_receiving(TURNS * options.rounds)
    results = {"client": asdict(client), "receiving": [asdict(row) for row in receiving]}
    return Shown(results, [*client_tables(client), receiving_table(receiving)])


def _shared(options: Namespace) -> Shown:
    outcomes = measure_shared()
    return Shown({"shared": [asdict(outcome) for outcome in outcomes]}, [shared_table(outcomes)])


def _syphon(options: Namespace) -> Shown:
    ways, note = measure_syphon(options.count // 2, options.rounds)
    return Shown({"syphon": [asdict(way) for way in ways], "shovel": note}, [syphon_table(ways), note])


def _spark(options: Namespace) -> Shown:
    spark = measure_spark(options.rounds)
    return Shown({"spark": asdict(spark)}, [*spark_tables(spark), spark.note])


def _report(options: Namespace) -> Shown:
    times = measure_report()
    return Shown({"report": [asdict(each) for each in times]}, [report_table(times)])


def _metering(options: Namespace) -> Shown:
    metering = measure_metering(options.count // 2, options.rounds)
    return Shown({"metering": asdict(metering)}, [*metering_tables(metering)])


def _processor(options: Namespace) -> Shown:
    rates = measure_processor()
    return Shown({"processor": [asdict(rate) for rate in rates]}, [processor_table(rates)])


SECTIONS: dict[str, Callable[[Namespace], Shown]] = {
    "start": _start,
    "throughput": _throughput,
    "latency": _latency,
    "deep": _deep,
    "fanout": _fanout,
    "sessions": _sessions,
    "many": _many,
    "deletion": _deletion,
    "client": _client,
    "processor": _processor,
    "shared": _shared,
    "syphon": _syphon,
    "spark": _spark,
    "report": _report,
    "metering": _metering,
}


def _throughput_table(rates: list[Rate]) -> Table:
    table = Table(
        "work", "pairbus /s", "rabbitmq /s", "ratio", "wanted", "pairbus µs CPU", "rabbitmq µs CPU", "client µs"
    )
    by_key = {(rate.broker, rate.kind): rate for rate in rates}
    for kind in dict.fromkeys(rate.kind for rate in rates):
        ours, theirs = by_key["pairbus", kind], by_key.get(("rabbitmq", kind))
        wanted = RATIO_WANTED.get(kind)
        table.add_row(
            kind,
            f"{ours.per_second:,.0f}",
            f"{theirs.per_second:,.0f}" if theirs else "-",
            f"{ours.per_second / theirs.per_second:.2f}" if theirs else "-",
            f"≥ {wanted}, ≤ {CPU_US_WANTED:.0f} µs" if wanted else "reported",
            f"{ours.broker_cpu_us:.1f}",
            f"{theirs.broker_cpu_us:.1f}" if theirs else "-",
            f"{ours.client_cpu_us:.1f}",
        )
    return table


def _start_table(start: Start) -> Table:
    table = Table("start", "measured", "wanted")
    table.add_row("to ready", f"{start.ready_s:.2f} s", "< 1 s")
    table.add_row("idle resident memory", f"{start.idle_mb:.0f} MB", "< 80 MB")
    return table


def _deep_table(deep: Deep) -> Table:
    table = Table(f"{deep.waiting:,} messages waiting", "measured", "wanted")
    table.add_row("resident memory", f"{deep.resident_mb:.0f} MB", "< 400 MB")
    table.add_row("restart to ready", f"{deep.restart_ready_s:.1f} s", "< 10 s")
    table.add_row("resident memory after restart", f"{deep.restarted_mb:.0f} MB", "< 400 MB")
    table.add_row("send, against an empty queue", f"{deep.send_ratio:.2f}", "≥ 0.8")
    table.add_row("receive, against an empty queue", f"{deep.receive_ratio:.2f}", "≥ 0.8")
    return table
