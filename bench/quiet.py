"""How quiet the machine is during a measurement: what other programs and other virtual machines take. Linux only."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import NamedTuple

from bench.procstat import CLOCK_TICKS_PER_S

LOAD_MAX = 0.5
"Load average with which a measurement begins on a quiet machine."
OTHERS_MAX = 0.03
STOLEN_MAX = 0.01


class Ticks(NamedTuple):
    """CPU time of the machine in ticks, by use, since it was started."""

    busy: int
    idle: int
    stolen: int


class Quiet:
    """The processors from the start of a measurement to its end."""

    def __init__(self) -> None:
        self.load = os.getloadavg()[0]
        "Load average at the start."
        self._ticks, self._own_s = _ticks(), _own_cpu_seconds()
        self.others = self.stolen = 0.0

    def end(self) -> None:
        """Note what others took of the processors; child processes of the measurement have ended before."""
        ticks, own = _ticks(), (_own_cpu_seconds() - self._own_s) * CLOCK_TICKS_PER_S
        busy, idle, stolen = (after - before for after, before in zip(ticks, self._ticks, strict=True))
        total = busy + idle + stolen
        self.others, self.stolen = max(0.0, busy - own) / total, stolen / total

    @property
    def is_quiet(self) -> bool:
        return self.load <= LOAD_MAX and self.others <= OTHERS_MAX and self.stolen <= STOLEN_MAX

    def __str__(self) -> str:
        verdict = "The machine was quiet" if self.is_quiet else "WARNING: the machine was not quiet"
        return (
            f"{verdict}: load average {self.load:.1f} before the run; other programs took {self.others:.1%} "
            f"of the {os.cpu_count()} processors, other virtual machines {self.stolen:.1%}."
        )


def _ticks() -> Ticks:
    fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, stolen = fields
    return Ticks(user + nice + system + irq + softirq, idle + iowait, stolen)


def _own_cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
