"""`pairbus pair create`, `syphon`, `redrive` and `spool drain` as processes, between two broker processes."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from tests.backlog import put_diverted_sync
from tests.client.messages import id_of
from tests.client.world import SEND_ONLY, SideName, World, message

pytestmark = pytest.mark.slow
RUN_S = 40.0  # for a command that takes two seconds, on a machine that is busy with other things
STOP_S = 20.0
LINE = re.compile(
    r"(?P<queues>\d+) queues?, (?P<waiting>\d+|\?) waiting, (?P<moved>\d+) moved, (?P<rate>\d+)/s(?:, \d+ s to go)?,"
    r" (?P<blocked>\d+) blocked, (?P<dead>\d+) dead-lettered, (?P<errors>\d+) errors"
)


def environment(world: World) -> dict[str, str]:
    ends = {side.upper(): world.namespaces.connection_string(side) for side in SIDES}
    return {**os.environ, **{f"PAIRBUS_{name}": text for name, text in ends.items()}}


SIDES: tuple[SideName, ...] = ("primary", "secondary")


def command(world: World, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pairbus", *arguments, "--primary-name", world.primary_name]


async def run(world: World, *arguments: str, named: bool = True) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)"""
    words = command(world, *arguments)
    done = await asyncio.to_thread(
        subprocess.run,
        words if named else words[:-2],
        env=environment(world),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@contextmanager
def running(
    world: World, *arguments: str, stderr: int = subprocess.PIPE, **environ: str
) -> Iterator[subprocess.Popen[str]]:
    """Killed at the end if the test did not end it."""
    given = {**environment(world), **environ}
    with subprocess.Popen(
        command(world, *arguments), env=given, stdout=subprocess.PIPE, stderr=stderr, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def make_backlog(world: World) -> None:
    for path in world.backlog:
        world.namespaces.make_queue("secondary", path)


def divert(world: World, path: str, count: int) -> list[str]:
    """Leave messages in the first backlog queue as a paired client does; return their ids."""
    ids = [f"{number:05}" for number in range(count)]

    messages = [ServiceBusMessage("x", message_id=one) for one in ids]
    put_diverted_sync(world.namespaces.connection_string("secondary"), world.backlog[0], path, messages)
    return ids


# ── pairbus pair create ──


async def test_the_queues_are_made_once_and_found_ever_after(world: World) -> None:
    """By somebody with the Manage claim; without it the command says what is missing and makes nothing."""
    arguments = ["pair", "create", "--backlog-queue-count", "2"]
    poor = world.namespaces.connection_string("secondary", SEND_ONLY)
    code, _, err = await run(world, *arguments, "--secondary", poor)
    assert code == 1 and "Manage" in err
    world.namespaces.backlog_made(world.backlog)
    code, out, _ = await run(world, *arguments)
    assert (code, out.splitlines()) == (0, [f"created {path}" for path in world.backlog])
    code, out, _ = await run(world, *arguments)
    assert (code, out.splitlines()) == (0, [f"found {path}" for path in world.backlog])
    queue = world.namespaces.make_queue()
    client = world.new_client("aio", secondary=poor, create_backlog_queues=False)
    await client.pair()
    client.client.force_failover(queue)
    await client.sender(queue).send(message())
    assert world.in_backlog() == 1


# ── pairbus syphon ──


async def test_once_brings_home_what_is_there_and_tells_what_had_to_stay(world: World) -> None:
    """Exit code 0 when nothing is left, 1 and the reason otherwise."""
    make_backlog(world)
    queue = world.namespaces.make_queue()
    divert(world, queue, 25)
    code, out, _ = await run(world, "syphon", "--once")
    assert (code, out) == (0, "moved 25 messages\n")
    assert world.count(queue) == 25
    divert(world, "not-there", 2)
    code, out, err = await run(world, "syphon", "--once")
    assert (code, out) == (1, "moved 0 messages, 2 left\n")
    assert "could not be found" in err


async def test_sigterm_during_a_move_ends_in_time_and_loses_nothing(world: World) -> None:
    """Messages on their way arrive and are completed, the rest stays in the backlog; no message is stored twice."""
    make_backlog(world)
    queue = world.namespaces.make_queue()
    ids = divert(world, queue, 3000)
    with running(world, "syphon", "--max-messages-per-second", "300") as process:
        began = time.monotonic()
        while world.count(queue) < 100:
            assert time.monotonic() - began < RUN_S and process.poll() is None
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        told = time.monotonic()
        out, err = await asyncio.to_thread(process.communicate, timeout=STOP_S)
        assert time.monotonic() - told < STOP_S
    moved = world.count(queue)
    assert (process.returncode, out) == (0, f"moved {moved} messages\n"), err
    assert 100 <= moved < 3000, "SIGTERM came in the middle of the drain"
    home = [id_of(payload) for payload in await world.take(queue, moved)]
    left = [id_of(payload) for payload in await world.take(world.backlog[0], 3000 - moved, "secondary")]
    assert sorted(home + left) == ids


async def test_an_absent_primary_is_one_line_and_sigterm_leaves_nothing_locked(world: World) -> None:
    """Backlog queues lock for a minute; the next receiver gets everything at once."""
    make_backlog(world)
    queue = world.namespaces.make_queue()
    world.nemesis().refuse()
    ids = divert(world, queue, 20)
    with running(world, "syphon", PAIRBUS_PRIMARY=world.connection_string("primary")) as process:
        assert process.stderr is not None
        while "unreachable" not in (line := await asyncio.to_thread(process.stderr.readline)):
            assert line, "the syphon ended"
        told = r"\d{4}-\d\d-\d\dT[\d:]{8}Z WARNING primary \S+ unreachable for \d+ s; "
        assert re.fullmatch(told + r"20 messages wait in 1 queue; next try in [124] s\n", line), line
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.to_thread(process.communicate, timeout=STOP_S)
    assert (process.returncode, out) == (0, "moved 0 messages, 20 left\n"), err
    left = [id_of(payload) for payload in await world.take(world.backlog[0], 20, "secondary", within_s=8.0)]
    assert sorted(left) == ids


async def test_on_a_terminal_one_line_shows_how_far_the_syphon_is(world: World) -> None:
    """Queues, waiting, moved, rate, errors: written over itself every second."""
    make_backlog(world)
    queue = world.namespaces.make_queue()
    divert(world, queue, 600)
    ours, theirs = pty.openpty()
    with running(world, "syphon", "--once", "--max-messages-per-second", "200", stderr=theirs) as process:
        os.close(theirs)
        shown = await asyncio.to_thread(read_all, ours)
        out, _ = await asyncio.to_thread(process.communicate, timeout=RUN_S)
    os.close(ours)
    assert (process.returncode, out) == (0, "moved 600 messages\n")
    lines = [found for part in shown.split("\r") if (found := LINE.match(part))]
    assert len(lines) >= 2 and {line["queues"] for line in lines} == {"2"}
    moved = [int(line["moved"]) for line in lines]
    assert moved == sorted(moved) and 0 < moved[-1] <= 600
    assert any(int(line["rate"]) > 0 for line in lines)
    assert any(line["waiting"] not in ("?", "0") for line in lines)
    assert {line["errors"] for line in lines} == {"0"}
    assert shown.count("\n") == 1, "only the first output is a line of its own"


def read_all(terminal: int) -> str:
    """Until the other end is closed, which a terminal tells by an error."""
    found = b""
    while True:
        try:
            more = os.read(terminal, 4096)
        except OSError:
            return found.decode()
        if not more:
            return found.decode()
        found += more


async def test_without_a_terminal_lines_follow_each_other(world: World) -> None:
    """A log has no line that is written over. Each line has its time and level."""
    make_backlog(world)
    divert(world, "not-there", 3)
    divert(world, world.namespaces.make_queue(), 60)
    code, _, err = await run(world, "syphon", "--once", "--max-messages-per-second", "20")
    assert code == 1 and "\r" not in err
    logged = [re.fullmatch(r"[\dT:-]{19}Z (INFO   |WARNING) (.+)", line) for line in err.splitlines()]
    begins, *lines = [entry[2] for entry in logged if entry is not None]
    assert all(logged), err
    assert f"2 backlog queues of {world.primary_name}" in begins
    assert any(LINE.fullmatch(line) for line in lines), "the first progress line comes after a second"
    assert any(line.startswith("not-there skipped in this pass") for line in lines)


async def test_a_target_takes_what_a_primary_that_never_returns_would_have_got(world: World) -> None:
    """The lost primary's name is all that is needed: nobody answers there."""
    make_backlog(world)
    queue = world.namespaces.make_queue()
    ids = divert(world, queue, 30)
    gone = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=v;UseDevelopmentEmulator=true"
    target = world.namespaces.connection_string("primary")
    code, out, err = await run(world, "syphon", "--once", "--primary", gone, "--target", target)
    assert (code, out) == (0, "moved 30 messages\n"), err
    assert [id_of(payload) for payload in await world.take(queue, 30)] == ids


# ── pairbus redrive, pairbus spool drain ──


async def test_dead_letters_of_the_backlog_are_driven_to_where_they_belong(world: World) -> None:
    """The destination was missing for too long; when it is there, they find their way by their alias or by a name."""
    make_backlog(world)
    queue = world.namespaces.make_queue()
    ids = divert(world, f"{queue}-late", 5)
    code, out, _ = await run(world, "syphon", "--once", "--missing-destination-grace", "0")
    assert (code, out) == (0, "moved 0 messages, 5 dead-lettered\n")
    secondary = world.namespaces.connection_string("secondary")
    arguments = ["redrive", world.backlog[0], "--connection-string", secondary]
    code, out, err = await run(world, *arguments, named=False)
    assert (code, out) == (0, "moved 5 messages\n"), err
    world.namespaces.make_queue("primary", f"{queue}-late")
    code, out, _ = await run(world, "syphon", "--once")
    assert (code, out) == (0, "moved 5 messages\n")
    assert sorted(id_of(payload) for payload in await world.take(f"{queue}-late", 5)) == ids


async def test_drain_takes_the_spool_of_a_dead_client_only(world: World, tmp_path: Path) -> None:
    """Two processes that forward one spool would send every message twice."""
    queue = world.namespaces.make_queue()
    nemeses = world.nemesis(), world.nemesis("secondary")
    client = await world.client("aio", spool_dir=tmp_path)
    for nemesis in nemeses:
        nemesis.refuse()
    sender = client.sender(queue)
    for one in ("first", "second"):
        await sender.send(message(message_id=one))
    arguments = ["spool", "drain", str(tmp_path), "--timeout", "0"]
    code, _, err = await run(world, *arguments)
    assert code == 1 and "is in use by another client" in err and world.count(queue) == 0
    await client.close()
    code, out, err = await run(world, *arguments[:3])
    assert (code, out) == (0, "forwarded 2 messages\n"), err
    assert [id_of(payload) for payload in await world.take(queue, 2)] == ["first", "second"]
