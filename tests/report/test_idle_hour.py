"""Cost of waiting: an hour of ten empty backlog queues, on a clock that jumps.

Syphon, connection, links and the broker's end of them are the genuine ones; between them is a pipe in memory instead of
a socket, so that the loop's clock can stand at the next timer at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

from pairbus.auth.sas import KeyRing, SharedAccessKey
from pairbus.broker import ROOT_KEY_NAME, WELL_KNOWN_KEY, QueueDescription
from pairbus.broker.monitoring.meter import NamespaceMeter
from pairbus.broker.namespace import Namespace
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.wire.peer import Peer
from pairbus.ledger import Ledger, MeterKind, Row, read
from pairbus.pairing.rotation import queue_path
from pairbus.syphon import Syphon, SyphonSettings
from pairbus.transport import Carrier, Plain
from tests.sim.loop import VirtualLoop

QUEUES = [queue_path("contoso", number) for number in range(10)]
NOON_S = 1_772_366_400  # 2026-03-01T12:00:00Z
HOUR_S = 3600
CLOSE_S = 10.0
AWAY = "Endpoint=sb://127.0.0.1:5673;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"


class InTurn(Random):
    """Dice that always choose the first task that is ready."""

    def randrange(self, *bounds: Any) -> int:
        return 0


class Pipe:
    """One direction of a connection: bytes arrive in order, a little later."""

    def __init__(self, loop: asyncio.AbstractEventLoop, arrives: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._arrives = arrives
        self._under_way: deque[bytes] = deque()

    is_frozen = False

    def write(self, data: bytes) -> None:
        self._under_way.append(bytes(data))
        self._loop.call_later(0.001, lambda: self._arrives(self._under_way.popleft()))

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Loop(VirtualLoop):
    """Loop on which every connection reaches the one namespace there is."""

    namespace: Namespace

    def now_ms(self) -> int:
        return NOON_S * 1000 + int(self.time() * 1000)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """The pipe takes the place of the socket."""

    async def connect_accepted_socket(self, factory: Any, sock: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        sock.close()
        wire = factory()
        peer = Peer(self.namespace, Pipe(self, wire.data_received), self)
        wire.connection_made(Pipe(self, peer.data_received))
        return None, wire


async def an_hour(loop: Loop, meter: Callable[..., None]) -> None:
    for path in QUEUES:
        await loop.namespace.create_queue(QueueDescription(path))
    away = Carrier(AWAY, credential=Plain(ROOT_KEY_NAME, WELL_KNOWN_KEY))
    home = Carrier(AWAY)  # no message arrives, so nothing is sent to this carrier
    syphon = Syphon(
        home,
        away,
        QUEUES,
        settings=SyphonSettings(),
        publish=lambda event: None,
        meter=meter,
        clock=loop.time,
        wall_ms=loop.now_ms,
    )
    running = asyncio.create_task(syphon.run())
    await asyncio.sleep(HOUR_S + 60)
    await syphon.stop()
    await running
    await away.close()


def test_idle_hour_of_ten_backlog_queues_costs_forty_receives(tmp_path: Path) -> None:
    """In thirty days that is 28 800: the price of being ready, which is visible in the ledger only."""
    loop = Loop(InTurn())
    clock = lambda: loop.now_ms() / 1000  # noqa: E731
    ledgers = [Ledger(tmp_path / name, client=name, clock=clock) for name in ("client", "broker")]
    keys = KeyRing([SharedAccessKey(ROOT_KEY_NAME, WELL_KNOWN_KEY)])
    loop.namespace = Namespace(
        "fabrikam",
        MemoryStore(loop.call_soon),
        keys,
        loop=loop,
        now_ms=loop.now_ms,
        meter=NamespaceMeter(ledgers[1], "fabrikam"),
    )

    def meter(side: Any, entity: str, kind: str, count: int, size_bytes: int, outcome: str) -> None:
        ledgers[0].meter(side, "fabrikam", entity, cast(MeterKind, kind), size_bytes, count, outcome, cause="syphon")

    try:
        loop.run_until_complete(an_hour(loop, meter))
    finally:
        loop.close()
    assert all(ledger.close(CLOSE_S) for ledger in ledgers)
    ours, theirs = counted(read(tmp_path / "client")), counted(read(tmp_path / "broker"))
    assert ours == theirs
    within = Counter({key: count for key, count in ours.items() if key[2] <= "2026-03-01T13:00:00.999Z"})
    assert within.total() == 40
    assert {kind for _, kind, _ in within} == {"empty receive"}
    assert Counter(entity for entity, _, _ in within) == dict.fromkeys(QUEUES, 4)
    assert ours.total() == 50  # 40, and the ten polls that the stop ended count as empty too
    assert loop.complaints == []


def counted(rows: Any) -> Counter[tuple[str, str, str]]:
    """Receives by queue, kind and second."""
    found: Counter[tuple[str, str, str]] = Counter()
    row: Row
    for row in rows:
        assert row.billable_operations == row.count
        found[row.entity or "", row.kind, row.time] += row.count or 0
    return found
