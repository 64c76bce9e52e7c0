"""A sender that many threads or tasks share: the paired client compared with the plain SDK.

python -m bench.shared_sender                   8 threads × 500 messages, 200 tasks × 20 messages
python -m bench.shared_sender --each 100        fewer messages for each worker

Every run is a child process with a time limit of its own: the plain SDK's threads hang for ever.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from azure.servicebus import ServiceBusMessage
from rich.console import Console
from rich.table import Table

from bench.brokers import PairbusBroker
from bench.client_load import BODY, answer_of, entered, paired_client, plain_client
from pairbus.amqp.message import Message
from pairbus.transport import connect

PLAIN_LIMIT_S = 10.0
LIMIT_S = 120.0
CHILD_GRACE_S = 20.0
DRAINED_S = 2.0  # time without a message after which the queue counts as empty
WORKERS = ((False, 8, 500), (True, 200, 20))  # is async, threads or tasks, messages of each


@dataclass(frozen=True)
class Sharing:
    """Work of a child process."""

    paired: bool
    aio: bool
    primary: str
    secondary: str
    queue: str
    workers: int
    each: int
    limit_s: float
    opened: bool = False
    "True to send one message first, so that the workers do not race to open the link."


@dataclass(frozen=True)
class Outcome:
    client: str
    flavour: str
    workers: int
    expected: int
    accepted: int
    "Calls that returned."
    errors: int
    hung: int
    "Workers that had not ended when the time was over."
    stored: int
    "Different messages in the queue afterwards."
    twice: int
    "Messages that were stored more than once."
    seconds: float
    first_error: str

    @property
    def is_perfect(self) -> bool:
        return self.accepted == self.stored == self.expected and not (self.errors or self.hung or self.twice)


# ── in the child ──


class Tally:
    """Results of the workers of one child process."""

    def __init__(self) -> None:
        self.accepted = 0
        self.errors: list[str] = []
        self.lock = threading.Lock()

    def note(self, error: Exception | None) -> None:
        with self.lock:
            if error is None:
                self.accepted += 1
            else:
                self.errors.append(f"{type(error).__name__}: {error}"[:200])


def _message(worker: int, number: int) -> ServiceBusMessage:
    return ServiceBusMessage(BODY, message_id=f"{worker}-{number}")


def _threads(sender: Any, sharing: Sharing, tally: Tally) -> int:
    def work(worker: int) -> None:
        for number in range(sharing.each):
            try:
                sender.send_messages(_message(worker, number))
                tally.note(None)
            except Exception as error:  # any error of the SDK is the result
                tally.note(error)

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in range(sharing.workers)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + sharing.limit_s
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    return sum(thread.is_alive() for thread in threads)


async def _tasks(sender: Any, sharing: Sharing, tally: Tally) -> int:
    async def work(worker: int) -> None:
        for number in range(sharing.each):
            try:
                await sender.send_messages(_message(worker, number))
                tally.note(None)
            except Exception as error:  # any error of the SDK is the result
                tally.note(error)

    tasks = [asyncio.create_task(work(worker)) for worker in range(sharing.workers)]
    _, pending = await asyncio.wait(tasks, timeout=sharing.limit_s)
    return len(pending)


async def _child(sharing: Sharing) -> None:
    tally = Tally()
    if sharing.paired:
        client = paired_client(sharing.primary, sharing.secondary, aio=sharing.aio)
    else:
        client = plain_client(sharing.primary, aio=sharing.aio)
    async with AsyncExitStack() as stack:
        sender = (await entered(stack, client)).get_queue_sender(sharing.queue)
        if sharing.opened:
            await answer_of(sender.send_messages(_message(-1, 0)))
        began = time.monotonic()
        hung = await _tasks(sender, sharing, tally) if sharing.aio else _threads(sender, sharing, tally)
        seconds = time.monotonic() - began
        first_error = Counter(tally.errors).most_common(1)[0][0] if tally.errors else ""
        told = {"accepted": tally.accepted, "errors": len(tally.errors), "hung": hung, "seconds": seconds}
        print(json.dumps({**told, "first_error": first_error}), flush=True)
        os._exit(0)  # closing would wait for workers that hang


# ── around it ──


async def _drain(connection_string: str, queue: str) -> Counter[str]:
    """Empty the queue and return how often each message id was in it."""
    found: Counter[str] = Counter()
    async with await connect(connection_string) as connection:
        receiver = await connection.receiver(queue, credit=500)
        while batch := await receiver.receive(250, DRAINED_S):
            found.update(str(Message.decode(received.payload).properties.message_id) for received in batch)  # type: ignore[union-attr]
            await receiver.complete(batch)
    return found


def run_sharing(sharing: Sharing) -> Outcome:
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.shared_sender", "--child", json.dumps(asdict(sharing))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    expected = sharing.workers * sharing.each
    told: dict[str, Any] = {"accepted": 0, "errors": 0, "hung": sharing.workers, "seconds": sharing.limit_s}
    told["first_error"] = "the process did not answer and was killed"
    try:
        out, errors = child.communicate(timeout=sharing.limit_s + CHILD_GRACE_S)
        if child.returncode:
            raise RuntimeError(f"the child failed: {errors[-2000:]}")
        told = json.loads(out)
    except subprocess.TimeoutExpired:
        pass  # a hang is the result
    finally:
        child.kill()
        child.wait()
    found = asyncio.run(_drain(sharing.primary, sharing.queue))
    found.pop("-1-0", None)
    name = "pairbus" if sharing.paired else "plain SDK"
    return Outcome(
        client=f"{name}, open before" if sharing.opened else name,
        flavour="tasks" if sharing.aio else "threads",
        workers=sharing.workers,
        expected=expected,
        stored=len(found),
        twice=sum(count > 1 for count in found.values()),
        **told,
    )


def measure_shared(each: int | None = None) -> list[Outcome]:
    outcomes = []
    with PairbusBroker(namespaces=("first", "second")) as broker:
        broker.make_queue("shared")
        sides = broker.connection_strings
        for aio, workers, usual in WORKERS:
            ours = Sharing(True, aio, sides["first"], sides["second"], "shared", workers, each or usual, LIMIT_S)
            for sharing in (ours, replace(ours, paired=False, limit_s=PLAIN_LIMIT_S, opened=True)):
                outcomes.append(run_sharing(sharing))
                print(f"  {json.dumps(asdict(outcomes[-1]))}", file=sys.stderr, flush=True)
    return outcomes


def shared_table(outcomes: list[Outcome]) -> Table:
    table = Table("one sender", "messages", "stored", "twice", "errors", "hung", "seconds", "most frequent error")
    for one in outcomes:
        table.add_row(
            f"{one.client}, {one.workers} {one.flavour}",
            f"{one.expected:,}",
            f"{one.stored:,}",
            f"{one.twice:,}",
            f"{one.errors:,}",
            str(one.hung),
            f"{one.seconds:.1f}",
            one.first_error[:60],
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.shared_sender", description=__doc__)
    parser.add_argument("--each", type=int, help="messages for each worker")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(_child(Sharing(**json.loads(options.child))))
        return
    Console().print(shared_table(measure_shared(options.each)))


if __name__ == "__main__":
    main()
