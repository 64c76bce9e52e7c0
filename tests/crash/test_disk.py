"""A disk that is full, limited, read-only, or used by another owner."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pairbus.broker.monitoring.health import FRESH_S
from pairbus.transport import ClientConnection, Refused, connect
from tests.brokers import BrokerProcess
from tests.crash.draining import drain
from tests.crash.folders import QUEUE, STORE, refusal_on, serve_and_drain
from tests.crash.messages import digest_of, found, make
from tests.history.events import Drained
from tests.history.record import Recorder

pytestmark = pytest.mark.slow

DISK_BYTES = 12 << 20
MESSAGE_BYTES = 100_000


class Disk:
    """A small file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._ballast = folder / "ballast"

    def fill(self, leave_bytes: int = 0) -> None:
        """Fill the free space, also a second time."""
        free = shutil.disk_usage(self.folder).free
        with self._ballast.open("ab") as ballast:
            ballast.write(bytes(max(free - leave_bytes, 0)))

    def free(self) -> None:
        self._ballast.unlink()

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield Disk(folder)
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def new_broker() -> Iterator[Callable[[Path], BrokerProcess]]:
    """Starts brokers with one queue that end with the test, before the disk goes."""
    started: list[BrokerProcess] = []

    def start(folder: Path) -> BrokerProcess:
        # The file for standard error is beside the folder: it must be writable when the disk is full.
        broker = BrokerProcess(folder, namespaces=["contoso"])
        started.append(broker)
        broker.start()
        with broker.admin() as admin:
            admin.create_queue(QUEUE)
        return broker

    yield start
    for broker in started:
        broker.kill()


class Writer:
    """Sends messages and remembers which were accepted."""

    def __init__(self, connection: ClientConnection, prefix: str = "m") -> None:
        self._connection = connection
        self._prefix = prefix
        self._source = random.Random("disk")
        self.accepted: dict[str, str] = {}
        self.refusals: list[Refused] = []

    async def send(self, count: int) -> None:
        sender = await self._connection.sender(QUEUE)
        for _ in range(count):
            message_id = f"{self._prefix}{len(self.accepted) + len(self.refusals)}"
            payload = make(message_id, self._source, size=MESSAGE_BYTES)
            try:
                await sender.send(payload)
            except Refused as refused:
                assert not refused.outcome_unknown
                self.refusals.append(refused)
            else:
                self.accepted[message_id] = digest_of(payload)
        await sender.close()


def health_of(broker: BrokerProcess) -> tuple[int, str]:
    """Status and message, no older than the last thing that happened."""
    time.sleep(FRESH_S)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['contoso']}/health", timeout=10) as answer:
            return answer.status, json.load(answer)["message"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["message"]


async def drained(broker: BrokerProcess) -> dict[str, str]:
    recorder = Recorder()
    async with await connect(broker.connection_string()) as connection:
        await drain(connection, QUEUE, recorder)
    found = [event for event in recorder.history() if isinstance(event, Drained)]
    assert len({event.id for event in found}) == len(found)
    return {event.id: event.digest for event in found}


async def test_a_full_disk_rejects_sends_and_works_again_when_there_is_space(
    disk: Disk, new_broker: Callable[[Path], BrokerProcess]
) -> None:
    """No restart is needed; acknowledged messages stay, rejected ones are not there, and a kill changes neither."""
    broker = new_broker(disk.data)
    async with await connect(broker.connection_string()) as connection:
        writer = Writer(connection)
        await writer.send(10)
        disk.fill(leave_bytes=5 * MESSAGE_BYTES)
        await writer.send(20)
        assert 10 < len(writer.accepted) < 30
        assert {refused.condition for refused in writer.refusals} == {"amqp:internal-error"}
        assert "No space left for" in str(writer.refusals[0]), writer.refusals[0]
        before = len(writer.refusals)
        disk.free()
        await writer.send(10)
        assert len(writer.refusals) == before
    broker.restart()
    assert await drained(broker) == writer.accepted


async def test_file_size_limit_rejects_sends_until_it_is_lifted(
    tmp_path: Path, new_broker: Callable[[Path], BrokerProcess]
) -> None:
    """The limit stands for any write error of the system: the store goes on by itself when the cause is gone."""
    broker = new_broker(tmp_path / "data")
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    async with await connect(broker.connection_string()) as connection:
        writer = Writer(connection)
        await writer.send(10)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (20 * MESSAGE_BYTES, hard))
        await writer.send(20)
        assert 10 < len(writer.accepted) < 30
        assert {refused.condition for refused in writer.refusals} == {"amqp:internal-error"}
        before = len(writer.refusals)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))
        await writer.send(10)
        assert len(writer.refusals) == before
    broker.restart()
    assert await drained(broker) == writer.accepted


@pytest.mark.parametrize("first", ["settle", "kill"])
async def test_broker_on_a_full_disk_can_be_emptied_and_refilled(
    disk: Disk, new_broker: Callable[[Path], BrokerProcess], first: str
) -> None:
    """Settlements go on with the reserve, one by one, also after a kill; nobody has to free space by hand.

    The database keeps its size: what is sent afterwards goes where the settled messages were.
    """
    broker = new_broker(disk.data)
    async with await connect(broker.connection_string()) as connection:
        writer = Writer(connection)
        await writer.send(60)
        disk.fill()
        assert health_of(broker)[0] == 503, "/health notices the full disk before a send is refused"
        while not writer.refusals:
            await writer.send(1)
    if first == "kill":
        broker.restart()
    disk.fill()
    async with await connect(broker.connection_string()) as connection:
        receiver = await connection.receiver(QUEUE, credit=1)
        left = dict(writer.accepted)
        while left:
            [received] = await receiver.receive(1, timeout_s=10)
            await receiver.complete([received])
            del left[found(received.payload).id]
        assert await receiver.receive(1, timeout_s=0.5) == []
        assert health_of(broker) == (200, "Service is healthy.")
        again = Writer(connection)
        await again.send(20)
        assert again.refusals == []
    broker.restart()
    assert await drained(broker) == again.accepted


async def test_a_broker_starts_on_a_full_disk_and_waits_for_space(
    disk: Disk, new_broker: Callable[[Path], BrokerProcess]
) -> None:
    """Messages can be looked at; a new folder, which cannot be made, is refused in one line."""
    broker = new_broker(disk.data)
    async with await connect(broker.connection_string()) as connection:
        writer = Writer(connection)
        await writer.send(10)
    broker.kill()
    disk.fill()
    line = await refusal_on(disk.folder / "new")
    assert str(disk.folder / "new") in line and "No space left" in line, line
    certificate = broker.ca_file.rename(disk.folder / "ca.pem")
    ending = await serve_and_drain(disk.data)
    assert f"cannot write the certificate into {disk.data}: No space left" in ending.said.splitlines()[-1], ending.said
    certificate.rename(broker.ca_file)
    broker.start()
    async with await connect(broker.connection_string()) as connection:
        management = await connection.management(QUEUE)
        assert len(await management.peek(1, 10)) == 10
        disk.fill()  # again, because stopping the broker freed the space of the log
        full = Writer(connection, "full ")
        await full.send(20)
        assert full.refusals
        disk.free()
    assert await drained(broker) == writer.accepted | full.accepted


async def test_a_folder_that_cannot_be_written_is_refused_by_name(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A folder with an intact store is refused too."""
    is_root = os.geteuid() == 0  # permissions do not stop root
    disk: Disk = request.getfixturevalue("disk") if is_root else Disk(tmp_path)

    def allow(writing: bool) -> None:
        if is_root:
            disk.remount("rw" if writing else "ro")
            return
        for each in (disk.data, disk.data / STORE):
            if each.exists():
                each.chmod(0o755 if writing else 0o555)

    disk.data.mkdir()
    try:
        allow(False)
        assert str(disk.data) in await refusal_on(disk.data)
        allow(True)
        with BrokerProcess(disk.data, namespaces=["contoso"]) as broker:
            assert broker.terminate() == 0
        allow(False)
        assert str(disk.data) in await refusal_on(disk.data)
    finally:
        allow(True)


async def test_a_second_broker_is_refused_and_the_first_goes_on(
    tmp_path: Path, new_broker: Callable[[Path], BrokerProcess]
) -> None:
    """Two brokers on one folder would give out the same sequence numbers."""
    broker = new_broker(tmp_path / "data")
    async with await connect(broker.connection_string()) as connection:
        writer = Writer(connection)
        await writer.send(3)
        line = await refusal_on(tmp_path / "data")
        assert f"in use by another broker (process {broker.pid})" in line and "choose another folder" in line
        await writer.send(3)
    assert len(await drained(broker)) == 6
