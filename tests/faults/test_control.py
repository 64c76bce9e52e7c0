"""The switches: Python, JSON over HTTP with Manage, the control socket, and the command."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import signal
import socket
import stat
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pairbus.auth.sas import SharedAccessKey, sign
from pairbus.broker import ROOT_KEY_NAME, WELL_KNOWN_KEY, Broker, NamespaceOptions
from pairbus.broker.kit import port
from pairbus.cli import main
from pairbus.errors import ConfigError, InvalidFault
from pairbus.host.control import serving
from pairbus.host.control.serving import by_routes, open_server
from pairbus.host.control.sockets import PATH_BYTES_MAX
from tests.faults.conftest import World, until

LISTENER = SharedAccessKey("listener", "only listens", rights=frozenset({"Listen"}))


def two(**settings: Any) -> Broker:
    options = [NamespaceOptions("Contoso", keys=(LISTENER,)), NamespaceOptions("fabrikam")]
    return Broker(options, **{"data": None, **settings})


async def ask(method: str, url: str, body: Any = None, *, broker: Broker | None = None, **headers: str) -> Any:
    """(status, JSON) over the control socket of the broker, or over TCP."""
    connector = None if broker is None else aiohttp.UnixConnector(str(broker.control_socket))
    async with aiohttp.ClientSession(connector=connector) as session:
        data = body if isinstance(body, str) else None if body is None else json.dumps(body)
        async with session.request(method, url, data=data, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None) if answer.status != 401 else None


def token(key_name: str = ROOT_KEY_NAME, key: str = WELL_KNOWN_KEY) -> str:
    return sign("sb://127.0.0.1/", key_name, key, int(time.time()) + 60)


async def test_faults_are_added_listed_and_cleared_in_python(world: World) -> None:
    number = world.faults.add("throttle", entity="orders", direction="send", for_s=30)
    [shown] = world.faults.list()
    assert (shown["id"], shown["kind"], shown["entity"], shown["direction"]) == (number, "throttle", "orders", "send")
    assert 29 < shown["left_s"] <= 30
    with pytest.raises(InvalidFault, match="kind 'flood' is not known"):
        world.faults.add("flood")
    assert world.faults.clear(number) == 1
    assert not world.faults.acts


async def test_kind_of_the_proxy_is_refused_by_the_broker(world: World) -> None:
    """Broker and proxy share one table of kinds: a fault for a proxy only must not seem to be switched on."""
    for kind in ("dns", "certificate"):
        with pytest.raises(InvalidFault, match=f"{kind}: the broker cannot play it; pairbus proxy can"):
            world.faults.add(kind)


async def test_fault_ends_by_itself(world: World) -> None:
    """A timer ends the fault and lets callers go, without any event that the fault could meet."""
    world.faults.add("stall", for_s=0.05)
    await until(lambda: not world.faults.acts)
    assert world.faults.list() == []


async def test_control_socket_has_the_routes_of_each_namespace() -> None:
    async with two() as broker:
        assert await ask("GET", "http://x/", broker=broker) == (200, {"namespaces": ["Contoso", "fabrikam"]})
        faults = "http://x/contoso/$pairbus/faults"
        status, added = await ask("POST", faults, {"kind": "refuse", "for_s": "5m"}, broker=broker)
        assert (status, added["id"], added["for_s"], added["kind"]) == (200, 1, 300, "refuse")
        assert (await ask("GET", faults, broker=broker))[1][0]["id"] == 1
        assert await ask("GET", "http://x/fabrikam/$pairbus/faults", broker=broker) == (200, [])
        assert await ask("DELETE", f"{faults}/1", broker=broker) == (200, {"cleared": 1})
        assert await ask("DELETE", faults, broker=broker) == (200, {"cleared": 0})
        assert (await ask("DELETE", f"{faults}/1", broker=broker))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "contoso/$pairbus/faults", "{", 400, "the body is no JSON"),
        ("POST", "contoso/$pairbus/faults", "[]", 400, "must be a JSON object"),
        ("POST", "contoso/$pairbus/faults", "", 400, "kind None is not known"),
        (
            "POST",
            "contoso/$pairbus/faults",
            '{"kind": "stall", "for": 1}',
            400,
            "did you mean 'for_s'? accepted are",
        ),
        ("POST", "contoso/$pairbus/faults", "[" * 100_000, 400, "the body is no JSON"),
        ("POST", "contoso/$pairbus/reset", "[" * 100_000, 400, "the body is not JSON"),
        ("DELETE", "contoso/$pairbus/faults/x", None, 400, "is no number of a fault"),
        ("DELETE", f"contoso/$pairbus/faults/{'9' * 5000}", None, 400, "is no number of a fault"),
        ("PUT", "contoso/$pairbus/faults", "{}", 405, "Method Not Allowed"),
        ("GET", "contoso/$pairbus/nothing", None, 404, "there is no '/$pairbus/nothing'; there are: faults"),
        ("GET", "tailspin/$pairbus/faults", None, 404, "namespaces: Contoso, fabrikam"),
        ("GET", "contoso/orders", None, 404, "a path is /NAMESPACE/"),
    ],
)
async def test_wrong_requests_are_told_what_is_right(
    method: str, path: str, body: str | None, status: int, says: str
) -> None:
    async with two() as broker:
        found, said = await ask(method, f"http://x/{path}", body, broker=broker)
        assert (found, says in said["error"]) == (status, True), said
        assert broker.namespace("contoso").faults.list() == []


async def test_names_of_routes_may_have_any_case() -> None:
    async with two() as broker:
        for route in ("$PAIRBUS/clock", "$pairbus/Clock", "$Pairbus/FAULTS"):
            assert (await ask("GET", f"http://x/contoso/{route}", broker=broker))[0] == 200


async def test_port_needs_the_right_to_manage() -> None:
    async with two() as broker:
        port = broker.connection_string("contoso").split(";")[0].rsplit(":", 1)[1]
        url = f"http://127.0.0.1:{port}/$pairbus/faults"
        assert (await ask("GET", url))[0] == 401
        assert (await ask("GET", url, Authorization=token("listener", "only listens")))[0] == 401
        status, added = await ask("POST", url, {"kind": "stall", "entity": "a"}, Authorization=token())
        assert (status, added["kind"]) == (200, "stall")
        assert (await ask("DELETE", url, Authorization=token())) == (200, {"cleared": 1})


async def test_no_fault_shuts_the_socket_away() -> None:
    """The port meets every fault that it switched on itself."""
    async with two() as broker:
        faults = "http://x/contoso/$pairbus/faults"
        for kind in ("refuse", "black-hole", "stall", "internal-error", "disk-full"):
            assert (await ask("POST", faults, {"kind": kind}, broker=broker))[0] == 200
        assert await ask("DELETE", faults, broker=broker) == (200, {"cleared": 5})


# ── the file ──


async def test_socket_is_the_owners_alone_and_goes_with_the_broker(tmp_path: Path) -> None:
    async with two(data=tmp_path) as broker:
        path = tmp_path / "control.sock"
        assert broker.control_socket == path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    """A broker that was killed cannot remove it. It is no file of others, for whose sake the folder would stay open."""
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(data / "control.sock"))
    async with two(data=data) as broker:
        assert (await ask("GET", "http://x/", broker=broker))[0] == 200
        assert stat.S_IMODE(data.stat().st_mode) == 0o700


async def test_socket_of_a_running_broker_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        Broker([NamespaceOptions("first")], data=tmp_path) as first,
        Broker([NamespaceOptions("second")], data=tmp_path) as second,
    ):
        assert second.control_socket is None
        assert "the control socket cannot be opened: Address already in use" in caplog.text
        assert await ask("GET", "http://x/", broker=first) == (200, {"namespaces": ["first"]})


async def test_long_folder_gets_a_warning_and_a_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Unix sockets have short paths; folders of test runners often have long ones."""
    folder = tmp_path / ("long" * 30)
    caplog.set_level(logging.WARNING)
    async with two(data=folder) as broker:
        assert broker.control_socket is None
        assert broker.connection_string("contoso")
    allowed = f"a Unix socket allows {PATH_BYTES_MAX}; use a shorter path; faults can be switched over the port"
    assert allowed in caplog.text


async def test_broker_in_memory_tells_where_its_socket_is() -> None:
    async with two() as broker:
        path = broker.control_socket
        assert path is not None and path.is_socket()
    assert not path.exists()


# ── the command ──


async def pairbus(*arguments: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of the command, in a thread beside the broker's loop."""

    def run() -> int:
        try:
            main(arguments)
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = await asyncio.to_thread(run)
    return code, out.getvalue(), err.getvalue()


async def test_command_runs_in_a_thread_of_a_program_that_ignores_signals() -> None:
    """Only the main thread may set what a signal does: a command that has changed nothing restores nothing."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        code, out, _ = await pairbus("--version")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == 0 and out


async def test_command_switches_faults_over_the_socket() -> None:
    async with two() as broker:
        control = ("--control", str(broker.control_socket), "--namespace", "contoso")
        added = await pairbus(
            *("fault", "add", "delay", "--entity", "orders*", "--delay", "2m", "--for", "1h", *control)
        )
        assert added == (0, "1\n", "")
        folder = ("--control", str(Path(control[1]).parent), *control[2:])
        code, out, _ = await pairbus("fault", "list", *folder)
        assert code == 0
        assert out.splitlines()[1].split("\t")[:4] == ["1", "delay", "orders*", "-"]
        assert "delay_s=120" in out
        assert await pairbus("fault", "clear", "1", *control) == (0, "1 cleared\n", "")
        code, _, err = await pairbus("fault", "clear", "1", *control)
        assert (code, "there is no fault 1; active are: none" in err) == (1, True)
        code, _, err = await pairbus("fault", "list", "--control", str(broker.control_socket))
        assert (code, "say which: --namespace Contoso | fabrikam" in err) == (1, True)
        code, _, err = await pairbus("fault", "list", "--control", str(broker.control_socket), "--namespace", "ü")
        assert (code, "has no namespace 'ü'; say which: --namespace Contoso | fabrikam" in err) == (1, True)


async def test_command_refuses_sockets_that_have_no_faults(control_dir: Path) -> None:
    """The control socket of a client speaks JSON too, and knows no namespaces."""
    server = open_server(
        "client", control_dir / "no-faults", by_routes({("GET", "/"): lambda _: {"role": "client"}}), lambda: None
    )
    try:
        code, _, err = await pairbus("fault", "list", "--control", str(control_dir / "no-faults"))
    finally:
        server.close(wait=True)
    assert (code, "is no control socket of a broker or a proxy" in err) == (1, True)


async def test_command_switches_faults_over_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command finds the broker's certificate itself, and says where to go when a fault shuts it out.

    A fault that cuts or swallows all connections lets the answer to its own command leave first.
    """
    async with two() as broker:
        cs = broker.connection_string("contoso")
        monkeypatch.setenv("PAIRBUS_CONNECTION_STRING", cs)
        code, out, err = await pairbus("fault", "add", "throttle", "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)["kind"] == "throttle"
        code, _, err = await pairbus("fault", "clear", "--connection-string", cs)
        assert (code, "is being throttled" in err) == (1, True)
        broker.namespace("contoso").faults.clear()
        assert await pairbus("fault", "add", "black-hole") == (0, "2\n", "")
        broker.namespace("contoso").faults.clear()
        assert await pairbus("fault", "add", "refuse") == (0, "3\n", "")
        code, _, err = await pairbus("fault", "clear", "--connection-string", cs)
        assert (code, "--control DIR/control.sock always answers" in err) == (1, True)


async def test_command_without_a_broker_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try of a reader is often the bare command."""
    monkeypatch.delenv("PAIRBUS_CONNECTION_STRING", raising=False)
    code, _, err = await pairbus("fault", "list")
    assert (code, "give --control DIR, its data folder; or --connection-string" in err) == (2, True)


async def test_command_refuses_a_wrong_fault_before_it_connects() -> None:
    code, _, err = await pairbus("fault", "add", "black-hole", "--entity", "orders", "--control", "nowhere")
    assert (code, "for one entity use stall" in err) == (1, True)
    code, _, err = await pairbus("fault", "list", "--control", "nowhere")
    assert (code, "cannot reach nowhere: No such file or directory" in err) == (1, True)


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_rate_of_operations_must_be_a_number_above_zero(rate: float) -> None:
    async def start() -> None:
        async with Broker([NamespaceOptions("contoso", operations_per_s=rate)], data=None):
            pass

    with pytest.raises(ConfigError, match="accepted is a number above 0"):
        asyncio.run(start())


@pytest.mark.parametrize("route", ["faults", "clock", "reset"])
async def test_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, route: str) -> None:
    """A request that is never finished would be kept for ever, and its connection with it."""
    monkeypatch.setattr(port, "BODY_WAIT_S", 0.05)
    monkeypatch.setattr(serving, "PEER_S", 0.05)
    async with two() as broker:
        number = int(broker.connection_string("contoso").split(";")[0].rsplit(":", 1)[1])
        for prefix, connecting in (
            ("/contoso", asyncio.open_unix_connection(str(broker.control_socket))),
            ("", asyncio.open_connection("127.0.0.1", number)),
        ):
            reader, writer = await connecting
            head = f"POST {prefix}/$pairbus/{route} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {token()}\r\n"
            writer.write(f"{head}Content-Length: 9\r\n\r\n".encode())
            answer = await asyncio.wait_for(reader.readuntil(b"seconds"), 10)
            assert b" 400 " in answer and b"the body did not arrive within" in answer
            writer.close()


async def test_clock_and_reset_are_on_the_socket_too() -> None:
    """Port and socket share one table of routes: these switches work while the port is shut."""
    async with two() as broker:
        broker.namespace("contoso").faults.add("refuse")
        moved = await ask("POST", "http://x/contoso/$pairbus/clock", {"advance_seconds": 60}, broker=broker)
        assert (moved[0], moved[1]["offset_seconds"]) == (200, 60.0)
        assert await ask("POST", "http://x/contoso/$pairbus/reset", {}, broker=broker) == (200, {})
        assert (await ask("POST", "http://x/contoso/$pairbus/reset", "[]", broker=broker))[0] == 400
