"""A drain by our syphon, or the filling before it, in a process of its own.

Run as `python -m bench.syphon_load JSON`, it does one piece of work and prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass

from bench.load import STALL_S, payload
from pairbus.backlog.envelope import Envelope, wrap
from pairbus.pairing.events import Event, Moved
from pairbus.syphon import Syphon, SyphonSettings
from pairbus.transport import Carrier, connect
from pairbus.transport.loops import run

OUTSTANDING = 500


@dataclass(frozen=True)
class SyphonWork:
    kind: str
    "fill or drain."
    primary: str
    secondary: str
    queues: list[str]
    "The backlog queues."
    destinations: list[str]
    "Destinations of the messages, used in turns."
    count: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


async def fill(work: SyphonWork) -> dict[str, float]:
    """Send backlog messages of 1 KB, as diverted sends do, the same number to each queue."""
    messages = [wrap(payload(), Envelope(destination)) for destination in work.destinations]
    async with await connect(work.secondary) as connection:
        for queue in work.queues:
            sender = await connection.sender(queue)
            futures: deque[asyncio.Future[None]] = deque()
            for number in range(work.count // len(work.queues)):
                while len(futures) >= OUTSTANDING:
                    await futures.popleft()
                if not sender.sendable:
                    await sender.ready(STALL_S)
                futures.append(sender.send_nowait(messages[number % len(messages)], timeout_s=STALL_S))
            await asyncio.gather(*futures)
    return {}


async def drain(work: SyphonWork) -> dict[str, float]:
    """Drain the queues. The rate is from the first batch that arrived to the last, as for the shovel."""
    moves: list[tuple[float, int]] = []

    def note(event: Event) -> None:
        if isinstance(event, Moved):
            moves.append((time.perf_counter(), event.count))

    async with Carrier(work.primary) as primary, Carrier(work.secondary) as secondary:
        cpu = time.process_time()
        await Syphon(primary, secondary, work.queues, settings=SyphonSettings(), publish=note).run_once()
        cpu = time.process_time() - cpu
    moved = sum(count for _, count in moves)
    if moved != work.count:
        raise RuntimeError(f"{moved} of {work.count} messages were moved")
    per_second = (moved - moves[0][1]) / (moves[-1][0] - moves[0][0])
    return {"per_second": per_second, "cpu_seconds": cpu}


def main() -> None:
    work = SyphonWork(**json.loads(sys.argv[1]))
    runner = fill if work.kind == "fill" else drain
    print(json.dumps(run(runner(work))))


if __name__ == "__main__":
    main()
