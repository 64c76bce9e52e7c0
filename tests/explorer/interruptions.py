"""SIGINT in the middle of `pairbus message move`, `import` and `pairbus redrive`, in real processes.

    python -m tests.explorer.interruptions --rounds 50

Each round fills a queue of a real broker, starts the command as a process, sends it SIGINT at a random moment, and
counts what is there afterwards: every message must be in the source or in the destination, none may be locked;
started again without an interruption, the command must bring all of them to the destination.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairbus.explorer import Address, described, send, walk
from pairbus.transport import Carrier, ReceivedMessage
from tests.brokers import BrokerProcess
from tests.explorer.world import message

VERBS = ("move", "import", "redrive")
COMMAND_S = 120.0
FREE_S = 10.0  # wait for the next batch of messages; shorter than a lock, which lasts a minute


@dataclass
class Found:
    """Counts over all rounds of one verb."""

    rounds: int = 0
    interrupted: int = 0
    "Rounds in which the process was still at work when the signal came, and had not done everything."
    lost: int = 0
    locked: int = 0
    "Messages in the source that could not be received at once after the interruption."
    repeated: int = 0
    messages: int = 0
    codes: Counter[int] = field(default_factory=Counter)


class Rounds:
    """Rounds of one verb on one broker."""

    def __init__(self, broker: BrokerProcess, folder: Path, count: int, seed: int) -> None:
        self._connection_string = broker.connection_string("contoso")
        self._broker = broker
        self._folder = folder
        self._count = count
        self._random = random.Random(seed)
        self.found = {verb: Found() for verb in VERBS}

    def run(self, verb: str) -> None:
        """Play one round."""
        source, destination = (f"{verb}-{uuid.uuid4().hex[:8]}" for _ in range(2))
        with self._broker.admin() as admin:
            admin.create_queue(source)
            admin.create_queue(destination)
        arguments = asyncio.run(_PREPARED[verb](self, source, destination))
        found = self.found[verb]
        code, was_running = self._interrupt(arguments)
        left, arrived, locked = asyncio.run(self._look(verb, source, destination))
        found.rounds += 1
        found.codes[code] += 1
        found.messages += self._count
        found.locked += locked
        found.interrupted += was_running and len(set(arrived)) < self._count
        sent = {f"m{number}" for number in range(self._count)}
        if verb != "import":  # the source of an import is a file, not a queue
            found.lost += len(sent - set(left) - set(arrived))
        again = subprocess.run(
            self._command(arguments), env=self._environment(), timeout=COMMAND_S, capture_output=True, check=False
        )
        assert again.returncode == 0, (verb, code, locked, again.stdout, again.stderr)
        left, arrived, _ = asyncio.run(self._look(verb, source, destination))
        found.lost += len(sent - set(arrived))
        found.repeated += len(arrived) - len(set(arrived))

    def _interrupt(self, arguments: list[str]) -> tuple[int, bool]:
        """Start the command, and send SIGINT when it has begun to work and a random time has passed."""
        process = subprocess.Popen(
            self._command(arguments), env=self._environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            asyncio.run(self._wait_for_work(arguments, process))
            was_running = process.poll() is None
            if was_running:
                process.send_signal(signal.SIGINT)
            process.communicate(timeout=COMMAND_S)
        finally:
            process.kill()
            process.wait()
        return process.returncode, was_running

    async def _wait_for_work(self, arguments: list[str], process: subprocess.Popen[bytes]) -> None:
        """Return when some messages have arrived, a random number of them."""
        wanted = self._random.randrange(0, self._count * 3 // 4)
        async with Carrier(self._connection_string) as carrier:
            number = 0
            while process.poll() is None and wanted >= 0:
                async for page in walk(carrier, Address(self._destination), first=number, bodies=False):
                    wanted -= len(page)
                    number = int(described(page[-1])["sequence_number"]) + 1
                    if wanted < 0:
                        return
                await asyncio.sleep(0.005)

    def _command(self, arguments: list[str]) -> list[str]:
        return [sys.executable, "-m", "pairbus", *arguments]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PAIRBUS_CONNECTION_STRING": self._connection_string}

    # ── sources ──

    async def fill(self, source: str) -> None:
        async with Carrier(self._connection_string) as carrier:
            await send(carrier, source, (message(number) for number in range(self._count)))

    async def move(self, source: str, destination: str) -> list[str]:
        self._destination = destination
        await self.fill(source)
        return ["message", "move", source, destination, "--yes"]

    async def import_(self, source: str, destination: str) -> list[str]:
        self._destination = destination
        file = self._folder / f"{source}.jsonl"
        lines = (json.dumps({"message_id": f"m{number}", "body": "x"}) + "\n" for number in range(self._count))
        file.write_text("".join(lines))
        return ["message", "import", destination, str(file)]

    async def redrive(self, source: str, destination: str) -> list[str]:
        self._destination = destination
        await self.fill(source)
        async with Carrier(self._connection_string) as carrier:
            receiver = await carrier.receiver(source, credit=self._count)
            left = self._count
            while left:
                got = await receiver.receive(left, 10.0)
                await receiver.dead_letter(got, "Poison")
                left -= len(got)
            await receiver.close()
        return ["redrive", source, "--to", destination, "--duplicate-window", "0"]

    async def _look(self, verb: str, source: str, destination: str) -> tuple[list[str], list[str], int]:
        """Return the ids in both places, and how many of the source's are locked."""
        address = Address(source, is_dead_letter=verb == "redrive")
        async with Carrier(self._connection_string) as carrier:
            left = await _ids(carrier, address)
            arrived = await _ids(carrier, Address(destination))
            receiver = await carrier.receiver(address.path, credit=self._count)
            free: list[ReceivedMessage] = []
            while len(free) < len(left) and (batch := await receiver.receive(self._count, FREE_S)):
                free += batch
            await receiver.pause()  # otherwise released messages come back to this link
            await receiver.release(free)
            await receiver.close()
        return left, arrived, len(left) - len(free)


async def _ids(carrier: Carrier, address: Address) -> list[str]:
    return [described(one)["message_id"] async for page in walk(carrier, address, bodies=False) for one in page]


_PREPARED: dict[str, Callable[..., Coroutine[Any, Any, list[str]]]] = {
    "move": Rounds.move,
    "import": Rounds.import_,
    "redrive": Rounds.redrive,
}


def play(rounds: int, count: int, seed: int, folder: Path) -> Iterator[dict[str, Found]]:
    """Play rounds of each verb; yield the counts so far after each round."""
    with BrokerProcess(folder / "data", namespaces=("contoso",)) as broker:
        played = Rounds(broker, folder, count, seed)
        for _ in range(rounds):
            for verb in VERBS:
                played.run(verb)
            yield played.found


def main() -> None:
    """Play, and print a line for each verb after each round; exits with 1 when a message was lost or left locked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(f"seed {given.seed}: {given.rounds} rounds of {given.messages} messages for each verb", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for found in play(given.rounds, given.messages, given.seed, Path(folder)):
            print(*(f"{verb}: {counts}" for verb, counts in found.items()), sep="\n", flush=True)
    sys.exit(any(counts.lost or counts.locked for counts in found.values()))


if __name__ == "__main__":
    main()
