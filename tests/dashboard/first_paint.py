"""First paint of the page in headless Chromium, with many entities on a real broker.

    python -m tests.dashboard.first_paint --entities 1000 --rounds 10
    python -m tests.dashboard.first_paint --url http://127.0.0.1:5672/ --pid 1234    # a broker that runs

Prints, for each round, the milliseconds from the navigation to the first content on the screen, as the browser tells
it (`first-contentful-paint`), and to the first rows of entities; then the CPU of the broker while one page watches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from tests.brokers import BrokerProcess
from tests.report.chromium import Tab, browser

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
ROWS = "globalThis.rowsMs"
# Runs before the scripts of the page: records the time after the frame in which the rows of entities were painted.
OBSERVER = """
const look = () => document.querySelector('#entities ~ .scroll tbody tr')
  ? requestAnimationFrame(() => setTimeout(() => { globalThis.rowsMs = performance.now(); }))
  : requestAnimationFrame(look);
requestAnimationFrame(look);
"""
PATIENCE_S = 60.0


def measured(tab: Tab, url: str) -> tuple[float, float]:
    """Open the page as in a new tab; return both times in milliseconds."""
    tab.call("Page.navigate", url="about:blank")
    tab.call("Page.navigate", url=url)
    give_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_s:
        found = tab.ask(f"[{PAINT} ?? 0, {ROWS} ?? 0]")
        if all(found):
            return found[0], found[1]
        time.sleep(0.05)
    raise AssertionError("the page did not paint")


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--entities", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--watch", type=float, default=30.0, help="seconds for which the broker's CPU is measured")
    parser.add_argument("--url", help="a page that is served already, instead of a new broker")
    parser.add_argument("--pid", type=int, help="process that serves it")
    given = parser.parse_args()
    if given.url:
        with browser() as tab:
            report(tab, given.url, given.pid, given.rounds, given.watch)
        return
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder) / "data") as broker, browser() as tab:
        with broker.admin() as admin:
            for number in range(given.entities):
                admin.create_queue(f"queue-{number:05}")
        url = f"http://127.0.0.1:{broker.ports['contoso']}/"
        report(tab, url, broker.pid, given.rounds, given.watch)


def report(tab: Tab, url: str, pid: int, rounds: int, watch_s: float) -> None:
    """Print the times of all rounds, their medians, and the CPU of the process while a page watches."""
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=OBSERVER)
    times = [measured(tab, url) for _ in range(rounds + 1)][1:]  # the first one warms the browser up
    for paint_ms, rows_ms in times:
        print(f"first paint {paint_ms:.0f} ms, first rows {rows_ms:.0f} ms", flush=True)
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    print(f"median: first paint {medians[0]:.0f} ms, first rows {medians[1]:.0f} ms", flush=True)
    before_s = cpu_s(pid)
    time.sleep(watch_s)
    print(f"broker: {100 * (cpu_s(pid) - before_s) / watch_s:.2f} % of a core while one page watches")


if __name__ == "__main__":
    main()
