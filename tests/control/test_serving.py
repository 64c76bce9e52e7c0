"""The socket itself: its place and mode, its answers, and when it is removed."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

import pairbus
import pairbus.aio
from pairbus.errors import ConfigError, PairbusError
from pairbus.host.control import sockets
from pairbus.host.control.asking import ask
from pairbus.host.control.followers import FOLLOWERS_MAX, Followers
from pairbus.host.control.places import served
from pairbus.host.control.rate import Rate
from pairbus.host.control.serving import ControlAnswer, ControlRequest, ControlServer, by_routes, call_in, open_server
from tests.control.world import NAME, World, until

_numbers = count(1)


def new_client(world: World, **options: Any) -> pairbus.PairedServiceBusClient:
    """A sync client that has done nothing yet."""
    ends = world.primary.connection_string, world.secondary.connection_string
    return pairbus.PairedServiceBusClient.from_connection_strings(
        *ends, primary_name=NAME, backlog_queue_count=1, **{"control_socket": True, **options}
    )


@pytest.fixture
def own_dir(control_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that does not exist yet, for the sockets of one test."""
    folder = control_dir / f"serving-{next(_numbers)}"
    monkeypatch.setenv("PAIRBUS_CONTROL_DIR", str(folder))
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ── the file ──


def test_socket_and_folder_are_their_users_alone(world: World, own_dir: Path) -> None:
    """The modes do not depend on the umask: a user who may open the socket may fail the client over."""
    before = os.umask(0)
    try:
        with new_client(world):
            [path] = served("client")
            assert (mode(own_dir), mode(path)) == (0o700, 0o600)
            assert path.name.startswith(f"client-{os.getpid()}-")
    finally:
        os.umask(before)
    assert list(own_dir.iterdir()) == []


def test_no_socket_unless_told(world: World, own_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No socket is made by default, and none with False, with any environment."""
    new_client(world, control_socket=None).close()
    monkeypatch.setenv("PAIRBUS_CONTROL_SOCKET", "1")
    new_client(world, control_socket=False).close()
    assert not own_dir.exists()


def test_environment_opens_a_socket_and_never_stops_a_client(
    world: World, own_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator's variable must not break an application that knows nothing of it."""
    caplog.set_level(logging.WARNING, "pairbus.control")
    monkeypatch.setenv("PAIRBUS_CONTROL_SOCKET", "perhaps")
    new_client(world, control_socket=None).close()
    assert "PAIRBUS_CONTROL_SOCKET=perhaps is ignored" in caplog.text
    monkeypatch.setenv("PAIRBUS_CONTROL_SOCKET", "1")
    client = new_client(world, control_socket=None)
    assert len(served("client")) == 1
    client.close()
    own_dir.chmod(0o755)
    new_client(world, control_socket=None).close()
    assert "is open to other users: make it yours alone with chmod 700" in caplog.text


@pytest.mark.parametrize("what", ["long", "taken", "file", "open", "missing"])
def test_path_that_cannot_be_served_is_an_error_at_construction(world: World, own_dir: Path, what: str) -> None:
    """The error comes before any message; a file that is already there is not touched."""
    own_dir.mkdir(mode=0o700)
    path = own_dir / "a.sock"
    with socket.socket(socket.AF_UNIX) as other:
        wanted, says = {
            "long": (str(own_dir / ("x" * 120)), f"a Unix socket allows {sockets.PATH_BYTES_MAX}"),
            "taken": (str(path), "Address already in use"),
            "file": (str(path), "Address already in use"),
            "open": (True, "is open to other users"),
            "missing": (str(own_dir / "none" / "a.sock"), "No such file or directory"),
        }[what]
        if what == "taken":
            other.bind(str(path))
            other.listen()
        elif what == "file":
            path.write_text("a file of somebody else")
        elif what == "open":
            own_dir.chmod(0o755)
        with pytest.raises(ConfigError, match=says):
            new_client(world, control_socket=wanted)
    assert what != "file" or path.read_text() == "a file of somebody else"
    assert [one.name for one in own_dir.iterdir()] == (["a.sock"] if what in ("taken", "file") else [])


@pytest.mark.parametrize("wrong", [1, "", b"x", 0.5])
def test_option_that_is_no_path_names_what_is_accepted(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"control_socket is .*; it must be True, False, None or the path of a socket"):
        pairbus.SendAvailabilityPairedNamespaceOptions(control_socket=wrong)


def test_folders_of_another_environment_are_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service has no XDG_RUNTIME_DIR, and the operator who looks for it has one."""
    monkeypatch.delenv("PAIRBUS_CONTROL_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(sockets, "PATH_BYTES_MAX", 1000)
    folder = tmp_path / ".local" / "state" / "pairbus" / "run"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)  # a relative path is short enough to be bound
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("client-1-1.sock")
        one.listen()
        assert [path.name for path in served("client")] == ["client-1-1.sock"]
        runtime = tmp_path / "runtime"
        runtime.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        assert [path.name for path in served("client")] == ["client-1-1.sock"]
        assert served("syphon") == []


def test_young_socket_is_not_taken_for_a_stale_one(own_dir: Path) -> None:
    """A socket that is bound and does not listen yet refuses connections too; until then it has another name."""
    own_dir.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as young, socket.socket(socket.AF_UNIX) as stale:
        young.bind(str(own_dir / ".client-1-1.sock"))
        stale.bind(str(own_dir / "client-2-1.sock"))
        assert served() == []
    assert [path.name for path in own_dir.iterdir()] == [".client-1-1.sock"]


def test_forgotten_client_takes_its_socket_with_it(world: World, own_dir: Path) -> None:
    """A client that its owner has dropped is not kept by its socket or thread, also while its syphon runs."""
    client = new_client(world, enable_syphon=True)
    client.pair()
    [path] = served("client")
    until(lambda: ask(path, "GET", "/", None, 5.0)[1]["syphon"] is not None, "the syphon runs")
    del client

    def is_gone() -> bool:
        gc.collect()
        return not path.exists()

    until(is_gone, "the socket is removed")
    until(
        lambda: not any(one.name == f"pairbus-control {path.name}" for one in threading.enumerate()),
        "the thread has ended",
    )


# ── requests ──


@pytest.fixture(scope="module")
def client_socket(bus: Any, control_dir: Path) -> Iterator[Path]:
    """The socket of one client, for requests that change nothing."""
    ends = [bus.add_namespace(name) for name in ("served", "unserved")]
    path = control_dir / "requests"
    with pairbus.PairedServiceBusClient.from_connection_strings(
        *[one.connection_string for one in ends], primary_name=NAME, backlog_queue_count=1, control_socket=path
    ):
        yield path


@pytest.mark.parametrize(
    ("method", "route", "body", "status", "says"),
    [
        ("GET", "/nothing", None, 404, "there are: GET /, GET /events, POST /force-failover, POST /force-healthy"),
        ("DELETE", "/", None, 404, "there is no DELETE /"),
        ("PATCH", "/", None, 501, "Unsupported method"),
        ("POST", "/force-failover", {}, 400, "say which"),
        ("POST", "/force-failover", {"entities": ["a"], "all": True}, 400, "say which"),
        ("POST", "/force-failover", {"entities": ["a"], "all": "false"}, 400, "all and new must be true or false"),
        ("POST", "/force-failover", {"entities": ["a"], "new": 1}, 400, "all and new must be true or false"),
        ("POST", "/force-failover", {"entities": [""]}, 400, "list of names"),
        ("POST", "/force-failover", {"entities": "a"}, 400, "list of names"),
        ("POST", "/force-failover", {"entity": "a"}, 400, "'entity' is not known"),
        ("POST", "/force-failover", [1], 400, "must be a JSON object"),
        ("POST", "/force-healthy", {"entities": ["none"]}, 404, "it has senders for: nothing"),
    ],
)
def test_bad_requests_get_errors_in_json(
    client_socket: Path, method: str, route: str, body: Any, status: int, says: str
) -> None:
    found, said = ask(client_socket, method, route, body, 5.0)
    assert (found, says in said["error"]) == (status, True), said


@pytest.mark.parametrize(
    ("bytes_sent", "status"),
    [
        (b"nonsense\r\n\r\n", b" 400 "),
        (b"GET / HTTP/9.9\r\n\r\n", b" 505 "),
        (b"POST /force-healthy HTTP/1.1\r\nContent-Length: 5\r\n\r\n{]{]{", b" 400 "),
        (b"POST /force-healthy HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n", b" 400 "),
        (b"POST /force-healthy HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b" 400 "),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b" 414 "),
    ],
)
def test_nonsense_gets_errors_in_json(client_socket: Path, bytes_sent: bytes, status: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(5)
        peer.connect(str(client_socket))
        peer.sendall(bytes_sent)
        head, _, body = b"".join(iter(lambda: peer.recv(65536), b"")).partition(b"\r\n\r\n")
    assert status in head.splitlines()[0] and "error" in json.loads(body)


def test_silent_and_gone_peers_hold_nobody_for_long(client_socket: Path) -> None:
    """One request is answered at a time, so each has two seconds to arrive."""
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as gone:
        silent.connect(str(client_socket))
        gone.connect(str(client_socket))
        gone.sendall(b"GET / HTTP/1.1\r\n\r\n")
        gone.close()
        assert ask(client_socket, "GET", "/", None, 10.0)[0] == 200


def followed(path: Path) -> socket.socket:
    """Begin to follow a process; return the connection behind the headers of its answer."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(20)
    peer.connect(str(path))
    peer.sendall(b"GET /events HTTP/1.0\r\n\r\n")
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += peer.recv(1)
    assert b" 200 " in head
    return peer


def test_follower_hears_events_as_they_happen(world: World, own_dir: Path) -> None:
    with new_client(world) as client:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
        [path] = served("client")
        with followed(path) as peer, peer.makefile("rb") as lines:
            client.force_failover("orders")
            while json.loads(lines.readline())["event"] != "FailedOver":
                pass
            client.close()
            *_, last = lines  # the answer ends with the client
            assert json.loads(last)["event"] == "Closed"


@pytest.fixture
def followers() -> Followers:
    return Followers()


@pytest.fixture
def server(own_dir: Path, followers: Followers) -> Iterator[ControlServer]:
    """A control socket that tells events."""
    handler = by_routes({("GET", "/events"): lambda _: followers.with_room()})
    opened = open_server("client", None, handler, lambda: None, followers)
    yield opened
    opened.close(wait=True)


def test_follower_that_does_not_read_is_cut(server: ControlServer, followers: Followers) -> None:
    """A follower must not hold up a client."""
    with followed(server.path) as slow, followed(server.path) as quick:
        said = {"event": "x" * 10_000}
        for _ in range(1_000):
            followers.tell(said)
            while quick.recv(1 << 16)[-1:] != b"\n":
                pass
        received = b"".join(iter(lambda: slow.recv(1 << 16), b""))
        assert len(received) < 1_000 * 10_000, "it has an end"


def test_followers_have_a_limit_and_leave_room(server: ControlServer) -> None:
    peers = [followed(server.path) for _ in range(FOLLOWERS_MAX)]
    status, said = ask(server.path, "GET", "/events", None, 5.0)
    assert status == 409 and "follow this process already" in said["error"]
    peers.pop().close()
    peers.append(followed(server.path))
    for peer in peers:
        peer.close()


def test_request_that_waits_keeps_no_other_one_out(own_dir: Path) -> None:
    """A reset may wait for a disk that a fault has stopped; the next request ends the fault."""
    is_over = threading.Event()
    began: list[str] = []

    def handle(request: ControlRequest) -> ControlAnswer:
        if request.path == "/wait":
            began.append(request.path)
            return ControlAnswer(200, is_over.wait(20.0))
        is_over.set()
        return ControlAnswer(200, "ended")

    server = open_server("broker", None, handle, lambda: None)
    replies: list[Any] = []
    waits = threading.Thread(target=lambda: replies.append(ask(server.path, "POST", "/wait", {}, 20.0)))
    waits.start()
    try:
        until(lambda: began, "the request waits")
        assert ask(server.path, "POST", "/end", {}, 20.0) == (200, "ended")
        waits.join()
        assert replies == [(200, True)]
    finally:
        is_over.set()
        server.close(wait=True)


def test_client_without_an_event_loop_says_so(world: World, own_dir: Path) -> None:
    """The state of such a client is shown; forcing a failover waits for its first call."""
    ends = world.primary.connection_string, world.secondary.connection_string
    client = pairbus.aio.PairedServiceBusClient.from_connection_strings(*ends, primary_name=NAME, control_socket=True)
    [path] = served("client")
    assert ask(path, "GET", "/", None, 5.0)[1]["paired"] is False
    status, said = ask(path, "POST", "/force-failover", {"entities": ["a"], "new": True}, 5.0)
    assert status == 409 and "it begins with its first call" in said["error"]
    asyncio.run(client.close())
    assert not path.exists()


def test_call_that_a_busy_loop_did_not_get_to_is_never_made() -> None:
    """The operator was told that nothing was done."""
    made: list[int] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    hold = threading.Event()
    try:
        assert call_in(loop, lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            call_in(loop, lambda: 1 // 0)
        loop.call_soon_threadsafe(hold.wait)
        with pytest.raises(PairbusError, match=r"did not answer within 0\.1 s; nothing was done"):
            call_in(loop, lambda: made.append(1), 0.1)
        hold.set()
        call_in(loop, lambda: None)
        assert made == []
    finally:
        hold.set()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    with pytest.raises(PairbusError, match="nothing was done"):
        call_in(loop, lambda: None, 0.1)


# ── the rate ──


def test_rate_is_over_the_last_minute() -> None:
    """Samples are 5 seconds apart, so the window is between 60 and 65 seconds once there is enough."""
    rate = Rate()
    assert rate.per_s(0, 0.0) == (0.0, 0.0)
    assert rate.per_s(30, 3.0) == (10.0, 3.0)
    for second in range(4, 201):
        rate.add(min(second * 10, 1000), float(second))
    per_s, over_s = rate.per_s(1000, 200.0)
    assert (per_s, 60 <= over_s <= 65) == (0.0, True)
    assert rate.per_s(1650, 201.0)[0] == pytest.approx(650 / (over_s + 1), rel=0.1)


def test_rate_begins_anew_with_its_total() -> None:
    """A syphon that was started again counts from 0."""
    rate = Rate()
    rate.add(500, 0.0)
    rate.add(510, 10.0)
    assert rate.per_s(0, 12.0) == (0.0, 0.0)
    assert rate.per_s(20, 14.0) == (10.0, 2.0)
