"""`pairbus demo`: kill the broker with SIGKILL under load, start it again, and count.

Every message has an id and a digest of its content. A sender notes what it was told about each: accepted, or nothing
(the broker died before it answered, so the message may or may not be there). Afterwards both queues are emptied, and
what was found is compared with what was noted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import signal
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from pairbus.cli.broker import check_extra
from pairbus.cli.child_broker import ChildBroker
from pairbus.errors import ConfigError, PairbusError

NAMESPACES = ("contoso", "fabrikam")
QUEUE = "orders"
SENDERS_PER_NAMESPACE = 3
BODY_SIZES = (100, 2000)
RECONNECT_PAUSE_S = 0.1
RECONNECT_DEADLINE_S = 20.0
SEND_DEADLINE_S = 10.0
DRAIN_DEADLINE_S = 30.0  # without any message
PAGE = 500

EPILOG = """\b
Examples:
  pairbus demo
  pairbus demo --messages 10000 --seed 7
  pairbus demo --json demo.json
"""


def register(app: typer.Typer) -> None:
    app.command(name="demo", epilog=EPILOG)(demo)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The last table. Counts are of messages, over both namespaces."""

    sent: int
    accepted: int
    "Sends that the broker acknowledged."
    unknown: int
    "Sends that the broker's death left without an answer."
    found: int
    lost: int
    "Acknowledged and not found: must be 0."
    duplicated: int
    "Found more than once."
    altered: int
    "Found with another content than was sent, or in another namespace, or never sent at all."

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.duplicated or self.altered)


class Book:
    """What the senders know, and what was found."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._digests: dict[tuple[str, str], str] = {}
        self._accepted: set[tuple[str, str]] = set()
        self._found: Counter[tuple[str, str]] = Counter()
        self._altered: set[tuple[str, str]] = set()
        self.on_accepted = asyncio.Condition()

    @property
    def sent_count(self) -> int:
        return len(self._digests)

    @property
    def accepted_count(self) -> int:
        return len(self._accepted)

    def new_message(self, namespace: str, message_id: str) -> Any:
        from azure.servicebus import ServiceBusMessage

        body = self._random.randbytes(self._random.randint(*BODY_SIZES))
        number = self._random.randint(-(2**31), 2**31 - 1)
        message = ServiceBusMessage(body, message_id=message_id, subject="order", application_properties={"n": number})
        self._digests[namespace, message_id] = _digest(body, number)
        return message

    async def accepted(self, namespace: str, message_id: str) -> None:
        self._accepted.add((namespace, message_id))
        async with self.on_accepted:
            self.on_accepted.notify_all()

    def found(self, namespace: str, message: Any) -> None:
        key = (namespace, str(message.message_id))
        self._found[key] += 1
        properties = {
            k.decode() if isinstance(k, bytes) else k: v for k, v in (message.application_properties or {}).items()
        }
        if self._digests.get(key) != _digest(b"".join(message.body), properties.get("n")):
            self._altered.add(key)

    def verdict(self) -> Verdict:
        return Verdict(
            sent=len(self._digests),
            accepted=len(self._accepted),
            unknown=len(self._digests) - len(self._accepted),
            found=self._found.total(),
            lost=len(self._accepted - self._found.keys()),
            duplicated=sum(1 for count in self._found.values() if count > 1),
            altered=len(self._altered),
        )


def _digest(body: bytes, number: object) -> str:
    return hashlib.sha256(body + repr(number).encode()).hexdigest()


def demo(
    messages: Annotated[int, typer.Option(help="How many are sent, over both namespaces.", min=10, max=1_000_000)] = (
        2000
    ),
    seed: Annotated[
        int | None, typer.Option(help="Of the contents and of the moment of death. Default: another each time.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers to this file.")
    ] = None,
) -> None:
    """Kill a broker under load and show that every accepted message is still there.

    Starts two namespaces, sends with the genuine Azure SDK, kills the broker with SIGKILL in the middle, starts it
    again, empties the queues and counts. Exit code 1 when anything was lost, duplicated or altered.
    """
    check_extra()
    if json_file is not None and not json_file.parent.is_dir():
        raise ConfigError(f"--json {json_file}: the folder {json_file.parent} does not exist")
    seed = random.randrange(1_000_000) if seed is None else seed
    # The SDK warns about every connection that breaks; here that is the plot.
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    story = Story(messages, seed)
    verdict = asyncio.run(_until_told_to_stop(story.tell()))
    story.say_verdict(verdict)
    if json_file is not None:
        numbers = {"seed": seed, "killed_after": story.kill_at, "restart_s": round(story.restart_s, 3)}
        json_file.write_text(json.dumps({**asdict(verdict), **numbers}, indent=2) + "\n", encoding="utf-8")
    if not verdict.is_good:
        raise typer.Exit(1)


async def _until_told_to_stop(work: Any) -> Verdict:
    """SIGTERM ends the demo as Ctrl-C does: by cancelling it, so that everything is cleaned up."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task  # type: ignore[no-any-return]
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise  # Ctrl-C: asyncio.run makes a KeyboardInterrupt of it
        raise PairbusError("stopped by SIGTERM; nothing was left behind") from None


class Story:
    """One run: what happens, and what is said about it."""

    def __init__(self, messages: int, seed: int) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, soft_wrap=True)
        self._messages = messages
        self._seed = seed
        self._began_s = time.monotonic()
        self._book = Book(seed)
        self._numbers = iter(range(messages))
        self.kill_at = random.Random(seed).randint(messages * 2 // 5, messages * 3 // 5)
        "The broker dies when so many messages have been accepted."
        self.restart_s = 0.0

    def say(self, text: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._began_s:5.1f} s[/dim]  {text}")

    async def tell(self) -> Verdict:
        names = " and ".join(NAMESPACES)
        with tempfile.TemporaryDirectory(prefix="pairbus-demo-") as folder:
            async with ChildBroker([*NAMESPACES], Path(folder) / "data", Path(folder) / "stderr") as broker:
                self.say(f"broker {broker.pid} serves the namespaces {names}")
                await asyncio.to_thread(self._create_queues, broker.connection_strings)
                await self._send_everything(broker)
                self.say(f"all sent; emptying the queue '{QUEUE}' of {names}")
                await asyncio.gather(*(self._drain(name, text) for name, text in broker.connection_strings.items()))
        return self._book.verdict()

    def _create_queues(self, connection_strings: dict[str, str]) -> None:
        from pairbus.cli.admin_client import administration

        for connection_string in connection_strings.values():
            with administration(connection_string) as client:
                client.create_queue(QUEUE)

    async def _send_everything(self, broker: ChildBroker) -> None:
        self.say(
            f"{len(NAMESPACES) * SENDERS_PER_NAMESPACE} senders of the Azure SDK start with {self._messages} messages"
            f" (seed {self._seed})"
        )
        try:
            async with asyncio.TaskGroup() as group:
                for name, connection_string in broker.connection_strings.items():
                    for _ in range(SENDERS_PER_NAMESPACE):
                        group.create_task(self._send(name, connection_string))
                group.create_task(self._kill_and_restart(broker))
        except* PairbusError as errors:
            raise errors.exceptions[0] from errors  # the first reason is the one to tell

    async def _kill_and_restart(self, broker: ChildBroker) -> None:
        book = self._book
        async with book.on_accepted:
            await book.on_accepted.wait_for(lambda: book.accepted_count >= self.kill_at)
        pid = broker.pid
        await broker.kill()
        self.say(f"[bold red]kill -9 {pid}[/]: {book.accepted_count} of {book.sent_count} sends were accepted so far")
        began_s = time.monotonic()
        await broker.start()
        self.restart_s = time.monotonic() - began_s
        self.say(f"broker {broker.pid} is ready on the same data after {self.restart_s:.1f} s; the senders go on")

    async def _send(self, namespace: str, connection_string: str) -> None:
        """Take the next number until none is left. A send without an answer is not repeated: its fate is the point."""
        from azure.servicebus.exceptions import ServiceBusError

        while True:
            async with AsyncExitStack() as stack:
                sender = await _connected(stack, connection_string)
                for number in self._numbers:
                    message_id = f"{namespace}-{number}"
                    message = self._book.new_message(namespace, message_id)
                    try:
                        await sender.send_messages(message, timeout=SEND_DEADLINE_S)
                    except ServiceBusError:
                        break
                    await self._book.accepted(namespace, message_id)
                else:
                    return

    async def _drain(self, namespace: str, connection_string: str) -> None:
        from azure.servicebus import ServiceBusReceiveMode
        from azure.servicebus.aio import ServiceBusClient

        async with (
            ServiceBusClient.from_connection_string(connection_string) as client,
            client.get_queue_receiver(QUEUE, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
        ):
            deadline_s = time.monotonic() + DRAIN_DEADLINE_S
            while time.monotonic() < deadline_s:
                page = await receiver.receive_messages(max_message_count=PAGE, max_wait_time=1)
                for message in page:
                    self._book.found(namespace, message)
                if page:
                    deadline_s = time.monotonic() + DRAIN_DEADLINE_S
                elif await asyncio.to_thread(_held, connection_string) == 0:
                    return
        raise PairbusError(f"{namespace} still holds messages, but gave none for {DRAIN_DEADLINE_S:.0f} s")

    def say_verdict(self, verdict: Verdict) -> None:
        counts = asdict(verdict)
        if self._console.is_terminal:
            from rich import box
            from rich.table import Table

            table = Table(box=box.SIMPLE_HEAD)
            for name in counts:
                table.add_column(name, justify="right")
            table.add_row(*(str(count) for count in counts.values()))
            self._console.print(table)
        else:
            widths = [max(len(name), len(str(count))) for name, count in counts.items()]
            for cells in (counts.keys(), counts.values()):
                self._console.print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))
        if verdict.is_good:
            self._console.print("[green]Every accepted message is there, once and unaltered.[/]")
        else:
            self._console.print("[bold red]The broker broke its promise: see lost, duplicated, altered.[/]")


def _held(connection_string: str) -> int:
    """Messages of every kind that the queue still holds: an empty answer alone may only mean a slow machine."""
    from pairbus.cli.admin_client import administration

    with administration(connection_string) as client:
        return int(client.get_queue_runtime_properties(QUEUE).total_message_count or 0)


async def _connected(stack: AsyncExitStack, connection_string: str) -> Any:
    """A sender whose link is open. While the broker is down this fails, and no message is at stake yet."""
    from azure.servicebus.aio import ServiceBusClient
    from azure.servicebus.exceptions import ServiceBusError

    deadline_s = time.monotonic() + RECONNECT_DEADLINE_S
    while True:
        client = ServiceBusClient.from_connection_string(connection_string, retry_total=0)
        try:
            sender = await client.get_queue_sender(QUEUE).__aenter__()
        except ServiceBusError as error:
            await client.close()
            if time.monotonic() > deadline_s:
                raise PairbusError(f"the broker cannot be reached again: {error}") from error
            await asyncio.sleep(RECONNECT_PAUSE_S)
        else:
            stack.push_async_callback(client.close)
            return sender
