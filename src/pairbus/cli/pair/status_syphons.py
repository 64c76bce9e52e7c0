"""Syphons of a pair that run on this machine: `pairbus status` asks their control sockets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pairbus.cli.pipeline.telling import many
from pairbus.errors import PairbusError
from pairbus.host.control.asking import describe_all
from pairbus.host.control.places import served

NONE_SEEN = "syphons on this machine: none is seen; those of other machines and other users cannot be seen from here"


@dataclass(frozen=True, slots=True)
class Syphoning:
    """One syphon, as it describes itself."""

    pid: int
    role: str
    "syphon: `pairbus syphon`; client: a paired client with `enable_syphon=True`."
    program: str
    facts: dict[str, Any]
    "Counts and rate; or `error`, when its event loop does not answer."

    def __str__(self) -> str:
        who = f"{self.program} (pid {self.pid}, {self.role})"
        if "error" in self.facts:
            return f"{who}: {self.facts['error']}"
        facts = self.facts
        rate = f"{facts['per_second']:.1f} a second over the last {facts['over_s']:.0f} s"
        parts = [many(facts["queues"], "queue"), f"{facts['moved']} moved", rate]
        named = (("blocked", "blocked"), ("dead_lettered", "dead-lettered"))
        parts += [f"{facts[name]} {word}" for name, word in named if facts[name]]
        if facts["errors"]:
            parts.append(many(facts["errors"], "error"))
        if facts["primary_away"]:
            parts.append("waits: it cannot reach the primary")
        return f"{who}: {', '.join(parts)}"

    def as_json(self) -> dict[str, Any]:
        return {"pid": self.pid, "role": self.role, "program": self.program, **self.facts}


def seen_of_pair(secondary: str, primary_name: str, wait_s: float) -> list[dict[str, Any]]:
    """Ask the control sockets of this user for syphons and clients of a pair; return how they describe themselves."""
    processes = [process for process in describe_all(served(), wait_s) if not isinstance(process, PairbusError)]
    wanted = (secondary.lower(), primary_name.lower())
    return [process for process in processes if _pair_of(process) == wanted]


def _pair_of(process: dict[str, Any]) -> tuple[str, str]:
    return str(process.get("secondary", "")).lower(), str(process.get("primary_name", "")).lower()


def syphons_of(seen: Sequence[dict[str, Any]]) -> tuple[Syphoning, ...]:
    """Return the syphons among them."""
    return tuple(
        Syphoning(process["pid"], process["role"], process["program"], process["syphon"])
        for process in seen
        if process.get("syphon") is not None
    )


def lines_of(syphons: Sequence[Syphoning]) -> list[str]:
    """Return the lines of `pairbus status` about the syphons."""
    if not syphons:
        return [NONE_SEEN]
    rates = [one.facts["per_second"] for one in syphons if "error" not in one.facts]
    head = f"syphons on this machine: {len(syphons)}, together {sum(rates):.1f} messages a second"
    return [head, *(f"  {one}" for one in syphons)]
