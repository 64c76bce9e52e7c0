"""Time limits of tests on a machine that has other work."""

from __future__ import annotations

import os
import sys


def slowness() -> float:
    """1 on a machine that is not overloaded, where the limits are those of the promises.

    Where more wants to run than there are processors, everything takes as much longer, the SDK's own work included; and
    under a tracer, which `make coverage` has, three times as long. The load average follows a minute late, so test
    processes that run side by side count from their start.
    """
    wanted = max(os.getloadavg()[0], float(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    load = wanted / (os.cpu_count() or 1)
    return min(max(load, 1.0), 10.0) * (1.0 if sys.gettrace() is None else 3.0)
