"""The counters of a proxy: connections, frames, bytes."""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.amqp.performatives import Attach
from pairbus.proxy.conversation import UP, Direction, Unit, path_of

PATHS_MAX = 10_000  # paths that are counted apart: a client may attach to any text


@dataclass(slots=True)
class PathCounts:
    """Counts of the links of one path; `$cbs` and `orders/$management` are paths of their own."""

    attaches: int = 0
    "Links that clients attached."
    transfers: int = 0
    "Messages, or batches, from clients that reached the broker, pings included."
    transfers_held: int = 0
    "Transfers that were stalled on the way, including those that never arrived."
    pings: int = 0
    deliveries: int = 0
    "Messages that the broker sent to clients."
    answers: int = 0
    "Deliveries whose outcome reached the client: of its sends, and of its settlements."
    answers_dropped: int = 0
    bytes: int = 0
    "Bytes of the frames of these links, both ways."


class Counts:
    """Counts of all connections together. TLS is counted in bytes alone."""

    def __init__(self) -> None:
        self.connections = 0
        "Connections that were accepted, also those that met a black hole."
        self.bytes_up = 0
        self.bytes_down = 0
        self._paths: dict[str, PathCounts] = {}

    def of(self, path: str) -> PathCounts:
        path = path_of(path)
        if path not in self._paths and len(self._paths) >= PATHS_MAX:
            path = ""
        return self._paths.setdefault(path, PathCounts())

    def passed(self, direction: Direction, unit: Unit) -> None:
        if direction is UP:
            self.bytes_up += len(unit.raw)
        else:
            self.bytes_down += len(unit.raw)
        if unit.link is None:
            return
        counts = self.of(unit.link.path)
        counts.bytes += len(unit.raw)
        if isinstance(unit.performative, Attach) and direction is UP:
            counts.attaches += 1
        if unit.delivery_id is not None:
            if direction is UP:
                counts.transfers += 1
                counts.pings += unit.is_ping
            else:
                counts.deliveries += 1
