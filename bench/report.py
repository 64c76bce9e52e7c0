"""Time of a report, and peak memory of Java and Python, for ledgers of growing size.

python -m bench report                  5 000, 1 000 000 and 10 000 000 rows
python -m bench.report FOLDER           one measurement in a process of its own: the report of a folder, as JSON
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from pairbus.ledger.rows import time_text

ROWS = (5_000, 1_000_000, 10_000_000)
GOALS_S = {5_000: 5.0, 1_000_000: 20.0}
"Seconds that a report may take after Spark is up."
ROWS_PER_DAY = 1_000_000
FILE_BYTES = 64_000_000  # size of the files that a ledger writes
OUTAGE_S, PERIOD_S = 1800, 3600  # half of each hour is an outage
LIMIT_S = 3600.0
START_S = 1_772_323_200  # 2026-03-01T00:00:00Z
ENTITIES = ("orders", "payments", "shipping", "news/eu", "news/us")
PRIMARY, SECONDARY = "contoso.servicebus.windows.net", "fabrikam.servicebus.windows.net"


@dataclass(frozen=True, slots=True)
class ReportTime:
    rows: int
    megabytes: float
    "Size of the ledgers."
    seconds: float
    "Time of the report, without the start of Spark."
    start_s: float
    "Time of the start of Spark."
    cpu_s: float
    "CPU time of the report, in this process, Java and Spark's workers."
    jobs: int
    "Jobs of Spark."
    java_peak_mb: float
    python_peak_mb: float
    diverted: int
    outages: int


def measure_report(sizes: tuple[int, ...] = ROWS) -> list[ReportTime]:
    found = []
    for rows in sizes:
        folder = Path(tempfile.mkdtemp(prefix="pairbus-bench-ledger-"))
        try:
            write_ledgers(folder, rows)
            done = subprocess.run(
                [sys.executable, "-m", "bench.report", folder],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=True,
            )
            found.append(ReportTime(**json.loads(done.stdout.splitlines()[-1])))
        finally:
            shutil.rmtree(folder)
    return found


def report_table(times: list[ReportTime]) -> Table:
    table = Table(
        "ledger rows",
        "MB",
        "seconds",
        "goal",
        "CPU s",
        "jobs",
        "rows/s",
        "Java peak MB",
        "Python peak MB",
        "diverted",
        "outages",
    )
    for each in times:
        table.add_row(
            f"{each.rows:,}",
            f"{each.megabytes:,.0f}",
            f"{each.seconds:.1f}",
            _goal(each),
            f"{each.cpu_s:.1f}",
            f"{each.jobs}",
            f"{each.rows / each.seconds:,.0f}",
            f"{each.java_peak_mb:,.0f}",
            f"{each.python_peak_mb:,.0f}",
            f"{each.diverted:,}",
            f"{each.outages:,}",
        )
    return table


def _goal(each: ReportTime) -> str:
    for rows, limit_s in GOALS_S.items():
        if abs(each.rows - rows) < rows / 10:
            return f"≤ {limit_s:g}: {'kept' if each.seconds <= limit_s else 'MISSED'}"
    return "-"


# ── ledgers ──


def write_ledgers(folder: Path, rows: int) -> None:
    """Write ledgers of one client and one syphon: three metered rows for each message that was diverted and moved."""
    messages = rows // 5
    days = max(rows / ROWS_PER_DAY, 0.1)
    _write(folder, "api-1-aaaaaaaa", _client_lines(messages, days))
    _write(folder, "syphon-2-bbbbbbbb", _syphon_lines(messages, days))


def _write(folder: Path, name: str, blocks: Iterator[str]) -> None:
    number = size = 0
    file = None
    for block in blocks:
        if file is None or size + len(block) > FILE_BYTES:
            if file is not None:
                file.close()
            file = (folder / f"2026-03-01-{name}-{number}.jsonl").open("w", encoding="ascii")
            number, size = number + 1, 0
        file.write(block)
        size += len(block)
    if file is not None:
        file.close()


def _seconds(messages: int, days: float) -> Iterator[tuple[int, range]]:
    """Yield seconds, each with the numbers of its messages."""
    total_s = round(days * 86400)
    for second in range(total_s):
        yield START_S + second, range(messages * second // total_s, messages * (second + 1) // total_s)


def _client_lines(messages: int, days: float) -> Iterator[str]:
    for at_s, numbers in _seconds(messages, days):
        text = time_text(at_s)
        head = f'{{"schema":1,"time":"{text}","client":"api","pid":1,"run":"aaaaaaaa","kind":'
        late = f'{{"schema":1,"time":"{text[:20]}500Z","client":"api","pid":1,"run":"aaaaaaaa","kind":'
        lines = [] if at_s % PERIOD_S not in (0, 10, OUTAGE_S) else _transitions(late, at_s % PERIOD_S)
        for n in numbers:
            entity, queue = ENTITIES[n % 5], f"contoso/x-servicebus-transfer/{n % 10}"
            lines.append(
                f'{head}"send","side":"primary","namespace":"{PRIMARY}","entity":"{entity}","cause":"application",'
                f'"outcome":"ok","count":12,"billable_operations":12,"bytes":9744}}\n'
                f'{head}"send","side":"secondary","namespace":"{SECONDARY}","entity":"{queue}","cause":"failover",'
                f'"outcome":"ok","count":1,"billable_operations":1,"bytes":1012}}\n'
                f'{late}"diverted","event":"Diverted","entity":"{entity}","queue":"{queue}",'
                f'"message_id":"4be0643f-1d98-573b-97cd-{n:012d}","details":{{"outcome_unknown":false}}}}\n'
            )
        yield "".join(lines)


def _transitions(head: str, moment_s: int) -> list[str]:
    event, details = {
        0: ("Suspected", '{"reason":"no answer","fails_over_in_s":10.0}'),
        10: ("FailedOver", '{"after_s":10.0,"failed_sends":3,"reason":"no answer","forced":false}'),
        OUTAGE_S: ("Recovered", '{"after_s":1790.0,"diverted":100,"by":"a ping"}'),
    }[moment_s]
    return [f'{head}"event","event":"{event}","entity":"{entity}","details":{details}}}\n' for entity in ENTITIES]


def _syphon_lines(messages: int, days: float) -> Iterator[str]:
    """Yield the lines of a syphon: messages come home five to twenty minutes later, but every hundredth stays."""
    for at_s, numbers in _seconds(messages, days):
        text = time_text(at_s + 300 + abs(at_s % PERIOD_S - PERIOD_S / 2) / 2)
        head = f'{{"schema":1,"time":"{text}","client":"syphon","pid":2,"run":"bbbbbbbb","kind":'
        yield "".join(
            f'{head}"send","side":"primary","namespace":"{PRIMARY}","entity":"{ENTITIES[n % 5]}","cause":"syphon",'
            f'"outcome":"ok","count":1,"billable_operations":1,"bytes":812}}\n'
            f'{head}"moved","event":"Moved","entity":"{ENTITIES[n % 5]}",'
            f'"queue":"contoso/x-servicebus-transfer/{n % 10}","message_id":"4be0643f-1d98-573b-97cd-{n:012d}"}}\n'
            for n in numbers
            if n % 100
        )


# ── one measurement ──


def _measured(folder: Path) -> ReportTime:
    from pairbus.ledger.prices import load
    from pairbus.report.job import make_report
    from pairbus.report.passes.sources import find_sources
    from pairbus.spark.session import local_session

    began = time.monotonic()
    spark = local_session("bench", "local[2]", **find_sources([folder]).session_conf())
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(1).count()
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    jobs_before, cpu_before_s = len(jobs()), _cpu_s()
    ready = time.monotonic()
    report = make_report(spark, [folder], prices=load("standard"), geo=load("geo-replication"), now_s=time.time())
    done = time.monotonic()
    java = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    return ReportTime(
        rows=report.source.rows,
        megabytes=sum(path.stat().st_size for path in folder.glob("*.jsonl")) / 1e6,
        seconds=done - ready,
        start_s=ready - began,
        cpu_s=_cpu_s() - cpu_before_s,
        jobs=len(jobs()) - jobs_before,
        java_peak_mb=_peak_mb(java),
        python_peak_mb=_peak_mb("self"),
        diverted=report.availability.total.diverted,
        outages=len(report.availability.outages),
    )


def _cpu_s() -> float:
    """Return the CPU time of this process and all below it, those that have ended included."""
    ticks: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has just ended
        ticks[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, (parent, _) in ticks.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks[pid][1] for pid in mine) / os.sysconf("SC_CLK_TCK")


def _peak_mb(pid: int | str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1000


if __name__ == "__main__":
    print(json.dumps(asdict(_measured(Path(sys.argv[1])))))
