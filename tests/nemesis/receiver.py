"""A process that receives from every sink of the primary until SIGTERM, and records what it got before it settles.

    python -m tests.nemesis.receiver NAME SEED LOG

Records: `got` (when its link was opened, sink, sequence number, id, digest) for each message, `trying` (when, sink, ids
and numbers) before some are completed, and `done` (when, sink, ids and numbers, outcome) after it. Some messages are
abandoned, and come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

from pairbus.transport import NextSession, ReceivedMessage, Receiver, Refused, TransportError, connect
from tests.nemesis.log import Log
from tests.nemesis.messages import recognise
from tests.nemesis.places import SESSION_SINKS, SINKS

CREDIT = 20
TIMEOUT_S = 4.0
AGAIN_S = 0.3
SESSION_S = 1.0
IDLE_S = 0.1  # time without a message after which the next session is accepted
Known = tuple[str, int]
"Id and sequence number."


class Sink:
    """One receiver of one sink, opened again whenever it is lost."""

    def __init__(self, path: str, place: str, log: Log, source: random.Random, stop: asyncio.Event) -> None:
        self._path = path
        self._place = place
        self._log = log
        self._source = source
        self._stop = stop

    async def run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(TransportError):
                async with await connect(self._place, timeout_s=TIMEOUT_S) as connection:
                    while not self._stop.is_set():
                        session = NextSession(SESSION_S) if self._path in SESSION_SINKS else None
                        receiver = await connection.receiver(
                            self._path, credit=CREDIT, session=session, timeout_s=TIMEOUT_S
                        )
                        await self._receive(receiver, is_session=session is not None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._stop.wait()

    async def _receive(self, receiver: Receiver, *, is_session: bool) -> None:
        opened_at = time.monotonic()
        while not self._stop.is_set():
            batch = await receiver.receive(CREDIT, timeout_s=IDLE_S if is_session else SESSION_S)
            if batch:
                await self._settle(receiver, batch, opened_at)
            elif is_session:
                break
        await receiver.close()

    async def _settle(self, receiver: Receiver, batch: list[ReceivedMessage], opened_at: float) -> None:
        known: dict[int, Known] = {}
        for one in batch:
            message_id, number, digest = recognise(one.payload)
            known[one.delivery_id] = message_id, number
            self._log.add(("got", opened_at, self._path, number, message_id, digest))
        if self._source.random() < 0.05:
            await receiver.abandon(batch)
            return
        if self._source.random() < 0.3:
            await asyncio.sleep(self._source.uniform(0.0, 0.2))
        self._log.add(("trying", time.monotonic(), self._path, list(known.values())))
        refused: set[int] = set(known)
        outcome = "unknown"
        try:
            await receiver.complete(batch)
            refused = set()
        except Refused as error:
            refused = set(error.delivery_ids) or set(known)
            outcome = "unknown" if error.outcome_unknown else "failed"  # a detach may leave the outcome unknown
            raise
        except TransportError as error:
            outcome = "unknown" if error.outcome_unknown else "failed"
            raise
        finally:
            now = time.monotonic()
            done = [known[each] for each in known if each not in refused]
            left = [known[each] for each in refused]
            self._log.add(("done", now, self._path, done, "ok"), ("done", now, self._path, left, outcome))


async def run(name: str, seed: str, log: Log) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    log.add(("begin",))
    place = os.environ["PAIRBUS_PRIMARY"]
    async with asyncio.TaskGroup() as group:
        for path in SINKS:
            source = random.Random(f"{seed} {name} {path}")
            group.create_task(Sink(path, place, log, source, stop).run())


def main(name: str, seed: str, file: str) -> None:
    asyncio.run(run(name, seed, Log(Path(file))))


if __name__ == "__main__":
    main(*sys.argv[1:])
