"""`pairbus store backup`: beside a running broker, of a stopped one, and interrupted."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.broker.description import QueueDescription
from pairbus.broker.store import Insert, PutEntity, StoredMessage, box_of
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.host.control.asking import UnixConnection
from pairbus.host.control.sockets import listen
from pairbus.host.locks import FolderLock
from tests.brokers import BrokerProcess
from tests.cli.command import Command
from tests.limits import slowness
from tests.pages import taking
from tests.store.common import commit

MARK = b"in the middle of a body"
DATA = bytes(50_000) + MARK + bytes(50_000)
BODY = b"\x00\x53\x75\xb0" + len(DATA).to_bytes(4) + DATA
"A bare message with one data section."


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


async def fill(folder: Path, megabytes: int) -> None:
    store = SqliteStore(folder)
    store.recover()
    assert await commit(store, PutEntity(1, QueueDescription("orders").to_json())) is None
    for first in range(1, megabytes * 10, 10):
        messages = [StoredMessage(n, BODY, n=n) for n in range(first, first + 10)]
        assert await commit(store, Insert(box_of(1), messages)) is None
    await store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The stopped store of a namespace, with 20 messages."""
    asyncio.run(fill(tmp_path / "data" / "contoso", 2))
    return tmp_path / "data" / "contoso"


class Sends:
    """A sender in a thread of its own; `accepted` has the ids of the messages whose sends returned."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.accepted: list[str] = []
        self._is_over = threading.Event()
        self._client = ServiceBusClient.from_connection_string(
            broker.connection_string(), connection_verify=str(broker.ca_file)
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._client, self._client.get_queue_sender("orders") as sender:
            while not self._is_over.is_set():
                name = f"sent {len(self.accepted)}"
                sender.send_messages(ServiceBusMessage(b"x", message_id=name))
                self.accepted.append(name)

    def wait_for(self, count: int) -> None:
        until = time.monotonic() + 30 * slowness()
        while len(self.accepted) < count:
            assert self._thread.is_alive() and time.monotonic() < until
            time.sleep(0.005)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


def ids_in(broker: BrokerProcess) -> list[str]:
    """The ids of all messages of the queue, in their order."""
    client = ServiceBusClient.from_connection_string(broker.connection_string(), connection_verify=str(broker.ca_file))
    found: list[str] = []
    with client, client.get_queue_receiver("orders") as receiver:
        last = 0
        while messages := receiver.peek_messages(max_message_count=200, sequence_number=last + 1):
            found += [message.message_id or "" for message in messages]
            last = messages[-1].sequence_number or 0
    return found


def test_backup_beside_sends_has_all_that_was_acknowledged_before(folder: Path, tmp_path: Path) -> None:
    """A second process copies 20 MB while a client sends on; a broker that starts on the copy has the sends up to one
    of them, and none is missing in between."""
    shutil.rmtree(folder)
    asyncio.run(fill(folder, 20))
    copy = tmp_path / "contoso.backup"
    with BrokerProcess(folder.parent, namespaces=["contoso"]) as broker:
        sends = Sends(broker)
        try:
            sends.wait_for(3)
            before = len(sends.accepted)
            line = [sys.executable, "-m", "pairbus", "store", "backup", str(folder), "--to", str(copy)]
            made = subprocess.run([*line, "--verify", "--json"], capture_output=True, text=True, check=False)
            assert made.returncode == 0, made.stderr
            after = len(sends.accepted)
            sends.wait_for(after + 3)
        finally:
            sends.stop()
    assert json.loads(made.stdout)["messages"] >= 200 + before
    restored = tmp_path / "restored" / "contoso"
    restored.mkdir(parents=True)
    shutil.copy(copy, restored / "messages.db")
    with BrokerProcess(restored.parent, namespaces=["contoso"]) as broker:
        found = [name for name in ids_in(broker) if name.startswith("sent")]
        assert "missing" not in broker.stderr
    assert before <= len(found) <= after + 1
    assert found == [f"sent {n}" for n in range(len(found))]
    assert copy.stat().st_mode & 0o777 == 0o600


def test_kill_of_the_broker_in_between_leaves_no_half_file(folder: Path, tmp_path: Path, command: Command) -> None:
    """Under its final name there is a whole copy or nothing, and the drafts are gone."""
    asyncio.run(fill(tmp_path / "data" / "large", 30))
    target = tmp_path / "backups"
    target.mkdir()
    with BrokerProcess(tmp_path / "data", namespaces=["large"]) as broker:

        def kill_during_copy() -> None:
            until = time.monotonic() + 30 * slowness()
            while not any(path.stat().st_size for path in target.glob(".*.new")) and time.monotonic() < until:
                time.sleep(0.001)
            broker.kill()

        killer = threading.Thread(target=kill_during_copy)
        killer.start()
        outcome = command("store", "backup", str(tmp_path / "data" / "large"), "--to", str(target / "copy"))
        killer.join()
    if outcome.code == 0:  # the copy was complete before the kill
        assert [path.name for path in target.iterdir()] == ["copy"]
    else:
        assert outcome.code == 1 and "The broker ended during the backup" in outcome.err
        assert list(target.iterdir()) == []


def test_broker_removes_the_draft_of_a_client_that_left(tmp_path: Path) -> None:
    """The command may be killed: the broker would go on copying for nobody."""
    asyncio.run(fill(tmp_path / "data" / "contoso", 30))
    draft = tmp_path / "draft"
    draft.touch()
    with BrokerProcess(tmp_path / "data", namespaces=["contoso"]) as broker:
        connection = UnixConnection(broker.data_dir / "control.sock", 20.0)
        connection.request("POST", "/contoso/$pairbus/backup", json.dumps({"draft": str(draft)}))
        connection.close()
        until = time.monotonic() + 30 * slowness()
        while draft.exists():
            assert time.monotonic() < until
            time.sleep(0.01)


@contextmanager
def broker_that_ends(folder: Path) -> Iterator[None]:
    """A control socket whose broker begins a backup and dies."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            draft = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["draft"]
            Path(draft).write_bytes(b"half")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"copied": 16384, "of": 32768}\n')

        def log_message(self, *_: object) -> None:
            pass

    class Server(socketserver.UnixStreamServer):
        def __init__(self) -> None:
            socketserver.BaseServer.__init__(self, str(folder), Answer)
            self.socket = listen(folder / "control.sock")

        def get_request(self) -> tuple[socket.socket, object]:
            return self.socket.accept()[0], ("", 0)

    with Server() as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield
        thread.join()


def test_half_a_copy_is_removed_when_the_broker_ends(folder: Path, tmp_path: Path, command: Command) -> None:
    lock = FolderLock(folder)
    lock.sign()
    target = tmp_path / "backups"
    target.mkdir()
    with broker_that_ends(folder.parent):
        outcome = command("store", "backup", str(folder), "--to", str(target / "copy"))
    lock.release()
    assert outcome.code == 1 and "The broker ended during the backup" in outcome.err
    assert list(target.iterdir()) == []


def test_a_stopped_broker_is_backed_up_too(folder: Path, tmp_path: Path, command: Command) -> None:
    """The data folder is enough when it holds one namespace."""
    outcome = command("store", "backup", str(folder.parent), "--to", str(tmp_path / "copy"), "--verify")
    assert outcome.code == 0, outcome.err
    assert "20 messages" in outcome.out and "verified" in outcome.out


def test_backup_of_the_page_is_restored_as_on_the_page(tmp_path: Path) -> None:
    """Three lines of a shell, and a broker that starts with the copy."""
    asyncio.run(fill(tmp_path / "pairbus-data" / "contoso", 1))
    with taking("test_backup_of_the_page_is_restored_as_on_the_page") as take:
        *lines, start = take("pairbus store backup").splitlines()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "\n".join(["set -e", *lines])
    ran = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert start == "pairbus broker --namespace contoso=5672 --data restored"
    with BrokerProcess(tmp_path / "restored", namespaces=["contoso"]) as broker:
        assert len(ids_in(broker)) == 10


def test_file_that_exists_is_replaced_on_request_only(folder: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "copy").write_bytes(b"precious")
    refused = command("store", "backup", str(folder), "--to", str(tmp_path / "copy"))
    assert refused.code == 1 and "this file exists; --force replaces it" in refused.err
    assert (tmp_path / "copy").read_bytes() == b"precious"
    assert command("store", "backup", str(folder), "--to", str(tmp_path / "copy"), "--force").code == 0
    assert (tmp_path / "copy").read_bytes().startswith(b"SQLite format 3")


def test_damaged_store_gives_no_verified_backup(folder: Path, tmp_path: Path, command: Command) -> None:
    """A file that looks like a backup would be found out when it is needed."""
    file = folder / "messages.db"
    data = bytearray(file.read_bytes())
    data[data.index(MARK)] ^= 1
    file.write_bytes(data)
    outcome = command("store", "backup", str(folder), "--to", str(tmp_path / "copy"), "--verify")
    assert outcome.code == 1 and "damaged" in outcome.err and outcome.err.count("\n") == 1
    assert not (tmp_path / "copy").exists()


def test_one_namespace_at_a_time(folder: Path, tmp_path: Path, command: Command) -> None:
    """The error has the command that works."""
    shutil.copytree(folder, folder.with_name("fabrikam"))
    outcome = command("store", "backup", str(folder.parent), "--to", str(tmp_path / "copy"))
    assert outcome.code == 1
    assert "holds the namespaces contoso, fabrikam" in outcome.err
    assert f"pairbus store backup {folder} --to" in outcome.err


def test_owner_that_does_not_answer_is_told(folder: Path, tmp_path: Path, command: Command) -> None:
    """The lock says that somebody has the store; a copy beside an unknown writer would be worth nothing."""
    lock = FolderLock(folder)
    lock.sign()
    outcome = command("store", "backup", str(folder), "--to", str(tmp_path / "copy"))
    lock.release()
    assert outcome.code == 1
    assert f"in use by another broker (process {os.getpid()})" in outcome.err
    assert f"does not answer at {folder.parent / 'control.sock'}" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_clients_of_the_port_cannot_have_files_written(tmp_path: Path) -> None:
    """The right Manage is over entities, not over files of the broker's machine."""
    from pairbus.cli.serve.control_client import control_client
    from pairbus.errors import FaultNotFound

    draft = tmp_path / "draft"
    draft.touch()
    with BrokerProcess(tmp_path / "data", namespaces=["contoso"]) as broker:
        client = control_client(None, None, broker.connection_string(), None)
        with pytest.raises(FaultNotFound, match="there is no '/\\$pairbus/backup'"):
            client.call("POST", "backup", {"draft": str(draft)})
    assert draft.stat().st_size == 0
