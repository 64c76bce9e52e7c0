"""Asks the control sockets of this machine for facts about pairs: their clients and syphons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pairbus.auth.connection_string import host_and_port
from pairbus.auth.hosts import is_loopback
from pairbus.errors import PairbusError
from pairbus.host.control.asking import describe_all
from pairbus.host.control.places import served

CONTROL_S = 2.0
WORST = ("HEALTHY", "SUSPECT", "FAILED_OVER", "HELD_OVER")
COUNTS = ("sent", "diverted", "spooled", "failed", "pings", "failovers")
SYPHON_FACTS = ("queues", "moved", "per_second", "blocked", "dead_lettered", "errors", "primary_away", "error")

IsOurs = Callable[[dict[str, Any]], bool]


def described() -> list[dict[str, Any]]:
    """Ask all control sockets of this user; those that do not answer are left out. Blocks.

    `client_id` is the name of the socket, which tells two clients of one process apart; `socket` is its path.
    """
    paths = served()
    answers = zip(paths, describe_all(paths, CONTROL_S), strict=True)
    return [
        {**facts, "client_id": path.stem, "socket": path}
        for path, facts in answers
        if not isinstance(facts, PairbusError)
    ]


def same_namespace(one: str | None, other: str) -> bool:
    """Tell whether two authorities mean one namespace: loopback names are the same host. None is no namespace."""
    return one is not None and _plain(one) == _plain(other)


def _plain(authority: str) -> tuple[str, int | None]:
    host, port = host_and_port(authority.lower(), "authority")
    return ("localhost" if is_loopback(host) else host), port


def clients_at_work(ours: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the clients that are at work, without those whose pairing is switched off: they know no states."""
    return [
        one
        for one in ours
        if one["role"] == "client" and not one.get("ended") and (one.get("paired") or one.get("secondary") is None)
    ]


def pair_facts(ours: Sequence[dict[str, Any]], now_s: float) -> dict[str, Any]:
    """Join the descriptions of clients and syphons: the state of an entity is the worst that any client has."""
    entities: dict[str, dict[str, Any]] = {}
    for client in clients_at_work(ours):
        for entity in client["entities"]:
            _join(entities, entity, now_s)
    syphons = [_syphon(one) for one in ours if one.get("syphon") is not None]
    return {
        "entities": dict(sorted(entities.items())),
        "clients": [
            {"pid": one["pid"], "program": one["program"], "entities": len(one["entities"])}
            for one in ours
            if one["role"] == "client"
        ],
        "syphons": syphons,
        "syphon_per_second": round(sum(one.get("per_second", 0.0) for one in syphons), 1),
        "spool_depth": sum(one.get("spool_depth", 0) for one in ours if one["role"] == "client"),
    }


def _join(entities: dict[str, dict[str, Any]], entity: dict[str, Any], now_s: float) -> None:
    since_s = int(now_s - entity["for_s"])
    total = entities.setdefault(
        entity["path"], {"state": "HEALTHY", "since_s": since_s, "clients": 0, **dict.fromkeys(COUNTS, 0)}
    )
    total["clients"] += 1
    for name in COUNTS:
        total[name] += int(entity.get(name, 0))
    if WORST.index(entity["state"]) > WORST.index(total["state"]):
        total.update(state=entity["state"], since_s=since_s)
        if entity.get("cause"):
            total["cause"] = entity["cause"]
    elif entity["state"] == total["state"]:
        total["since_s"] = min(total["since_s"], since_s)


def _syphon(one: dict[str, Any]) -> dict[str, Any]:
    facts = {name: one["syphon"][name] for name in SYPHON_FACTS if name in one["syphon"]}
    return {"pid": one["pid"], "program": one["program"], "role": one["role"], **facts}
