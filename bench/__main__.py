"""`make bench`: every benchmark, as a table and as JSON in bench/results/.

python -m bench                     all benchmarks, about three quarters of an hour
python -m bench throughput --count 20000 --rounds 1
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from typing import Any

from rich.console import Console

from bench.brokers import RESULTS
from bench.sections import SECTIONS

PIPED_WIDTH = 200  # where no terminal says how wide it is; no table is wider


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure broker, client, syphon and report.")
    parser.add_argument("only", nargs="*", help=f"some of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--count", type=int, default=100_000, help="messages per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--waiting", type=int, default=1_000_000, help="messages in the deep queue, in the large topic")
    options = parser.parse_args()
    wanted = options.only or SECTIONS
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    results: dict[str, Any] = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {platform.system()}",
    }
    for name, measure in SECTIONS.items():
        if name in wanted:
            shown = measure(options)
            results |= shown.results
            console.print(*shown.parts)
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"
    file.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"written to {file}")


if __name__ == "__main__":
    main()
