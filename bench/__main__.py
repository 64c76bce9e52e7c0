"""`make bench`: every benchmark, as a table and as JSON in bench/results/.

python -m bench                     everything, about half an hour
python -m bench throughput --count 20000 --rounds 1
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from tools import rabbitmq

from bench.brokers import RESULTS, Measured, PairbusBroker, RabbitMQBroker
from bench.client import client_tables, measure_client
from bench.footprint import Deep, Start, measure_deep, measure_start
from bench.metering import measure_metering, metering_tables
from bench.report import measure_report, report_table
from bench.shared_sender import measure_shared, shared_table
from bench.spark import measure_spark, spark_tables
from bench.syphon import measure_syphon, syphon_table
from bench.throughput import Rate, measure

RATIO_WANTED = {"send": 1.5, "receive-ranges": 1.5}
CPU_US_WANTED = 30.0
SECTIONS = ("start", "throughput", "deep", "client", "shared", "syphon", "spark", "report", "metering")


def main() -> None:  # noqa: PLR0915 - one statement for each step
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure broker, client, syphon and report.")
    parser.add_argument("only", nargs="*", help=f"some of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--count", type=int, default=100_000, help="messages per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--waiting", type=int, default=1_000_000, help="messages in the deep queue")
    options = parser.parse_args()
    wanted = options.only or SECTIONS
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    console = Console()
    results: dict[str, Any] = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {platform.system()}",
    }
    if "start" in wanted:
        start = measure_start()
        results["start"] = asdict(start)
        console.print(_start_table(start))
    if "throughput" in wanted:
        rates, note = _throughput(options.count, options.rounds)
        results["throughput"] = [asdict(rate) for rate in rates]
        results["rabbitmq"] = note
        console.print(_throughput_table(rates), note)
    if "deep" in wanted:
        deep = measure_deep(options.waiting, options.count // 2, options.rounds)
        results["deep"] = asdict(deep)
        console.print(_deep_table(deep))
    if "client" in wanted:
        client = measure_client(options.rounds)
        results["client"] = asdict(client)
        console.print(*client_tables(client))
    if "shared" in wanted:
        outcomes = measure_shared()
        results["shared"] = [asdict(outcome) for outcome in outcomes]
        console.print(shared_table(outcomes))
    if "syphon" in wanted:
        ways, note = measure_syphon(options.count // 2, options.rounds)
        results["syphon"] = [asdict(way) for way in ways]
        results["shovel"] = note
        console.print(syphon_table(ways), note)
    if "spark" in wanted:
        spark = measure_spark(options.rounds)
        results["spark"] = asdict(spark)
        console.print(*spark_tables(spark), spark.note)
    if "report" in wanted:
        times = measure_report()
        results["report"] = [asdict(each) for each in times]
        console.print(report_table(times))
    if "metering" in wanted:
        metering = measure_metering(options.count // 2, options.rounds)
        results["metering"] = asdict(metering)
        console.print(*metering_tables(metering))
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"
    file.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"written to {file}")


def _throughput(count: int, rounds: int) -> tuple[list[Rate], str]:
    reason = rabbitmq.available()
    with ExitStack() as stack:
        brokers: list[Measured] = [stack.enter_context(PairbusBroker())]
        if reason is None:
            brokers.append(RabbitMQBroker(stack.enter_context(rabbitmq.RabbitMQ())))
        rates = measure(brokers, count, rounds)
    return rates, f"RabbitMQ {rabbitmq.version()}" if reason is None else f"RabbitMQ was not measured: {reason}"


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


if __name__ == "__main__":
    main()
