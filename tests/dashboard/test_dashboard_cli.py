"""`pairbus dashboard` and `pairbus demo --serve` as a shell sees them."""

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import termios
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.brokers import BrokerProcess
from tests.cli.command import Command
from tests.spark.processes import command_of, descendants

API = "$pairbus/page/api/"
WAIT_S = 60.0


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("dashboard")
    with BrokerProcess(folder / "data", options=("--key", "my own key")) as process:
        yield process


def test_namespace_must_be_named(command: Command) -> None:
    outcome = command("dashboard")
    assert outcome.code == 2 and "--primary" in outcome.err


def test_pair_of_one_namespace_is_refused(command: Command, broker: BrokerProcess) -> None:
    text = broker.connection_string()
    outcome = command("dashboard", "--primary", text, "--secondary", text)
    assert outcome.code == 1 and "a pair needs two" in outcome.err


def test_control_socket_of_another_broker_is_refused(command: Command, broker: BrokerProcess) -> None:
    """Faults would be switched somewhere else than the page shows."""
    elsewhere = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    outcome = command("dashboard", "--primary", elsewhere, "--control", str(broker.data_dir))
    assert outcome.code == 1 and "no namespace of this broker" in outcome.err


def test_missing_control_socket_is_told(command: Command, broker: BrokerProcess, tmp_path: Path) -> None:
    outcome = command("dashboard", "--primary", broker.connection_string(), "--control", str(tmp_path / "none.sock"))
    assert outcome.code == 1 and "none.sock" in outcome.err


def test_port_in_use_is_told_in_one_line(command: Command, broker: BrokerProcess) -> None:
    """The page and the broker are easily given the same port."""
    port = broker.ports["contoso"]
    outcome = command("dashboard", "--primary", broker.connection_string(), "--port", str(port))
    words = f"cannot listen on 127.0.0.1:{port}: {os.strerror(errno.EADDRINUSE)}; choose another port"
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.count("\n") == 1 and outcome.err.endswith(f"{words}\n")


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a command; yield it with the address of the page that it prints, and kill it in the end."""
    with subprocess.Popen([sys.executable, "-m", "pairbus", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            pages = (line for line in process.stdout if line.startswith("page: "))
            page = next(pages, None)
            assert page is not None, f"it ended with {process.wait()} and printed no address"
            yield process, page.removeprefix("page: ").strip()
        finally:
            process.kill()


def test_key_of_ones_own_prints_a_token_once_and_demands_it(broker: BrokerProcess) -> None:
    """The token is behind #: no browser sends that part of an address."""
    with started("dashboard", "--primary", broker.connection_string(), "--port", "0") as (process, address):
        url, _, token = address.partition("#token=")
        assert len(token) >= 32
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{url}{API}overview", timeout=WAIT_S)
        assert caught.value.code == 401
        caught.value.close()
        request = urllib.request.Request(f"{url}{API}overview", headers={"X-Pairbus-Token": token})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            found = json.load(answer)
        assert list(found["namespaces"]) == ["contoso"] and found["namespaces"]["contoso"]["reachable"]
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="only Linux lets a program choose the size of a pipe")
def test_sigterm_after_the_address_is_a_clean_end(tmp_path: Path, unused_tcp_port: int) -> None:
    """A supervisor may stop the page at once. The pipe has room for the first line only, so that the command is still
    printing when the signal comes."""
    line = f"page: http://127.0.0.1:{unused_tcp_port}/\n".encode()
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"\n" * (size - len(line)))
    with BrokerProcess(tmp_path / "data", namespaces=["contoso"]) as broker, os.fdopen(reading, "rb") as output:
        words = ["dashboard", "--primary", broker.connection_string(), "--port", str(unused_tcp_port)]
        with subprocess.Popen([sys.executable, "-m", "pairbus", *words], stdout=writing) as process:
            os.close(writing)
            try:
                while _bytes_in(reading) < size:  # until the address is printed
                    assert process.poll() is None
                    time.sleep(0.01)
                process.send_signal(signal.SIGTERM)
                assert output.read().lstrip(b"\n") == line + b"Ctrl-C ends it.\n"
                assert process.wait(WAIT_S) == 0
            finally:
                process.kill()


def _bytes_in(pipe: int) -> int:
    found = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose name is short: the path of a socket may have about a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_demo_serves_a_pair_until_it_is_stopped(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRBUS_CONTROL_DIR", str(short_folder / "run"))
    monkeypatch.setenv("TMPDIR", str(short_folder))
    with started("demo", "--serve", "--port", "0") as (process, url):
        with urllib.request.urlopen(f"{url}{API}overview", timeout=WAIT_S) as answer:
            found = json.load(answer)
        assert {name: one["role"] for name, one in found["namespaces"].items()} == {
            "contoso": "primary",
            "fabrikam": "secondary",
        }
        assert len(found["pair"]["clients"]) == 3 and found["cost"]["billable_operations"] > 0
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
        assert list(short_folder.glob("pairbus-demo-*")) == []


@pytest.mark.slow
def test_served_demo_that_is_stopped_while_it_starts_leaves_nothing_behind(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers are processes of their own: a demo that died without stopping them would leave them for ever."""
    monkeypatch.setenv("PAIRBUS_CONTROL_DIR", str(short_folder / "run"))
    monkeypatch.setenv("TMPDIR", str(short_folder))
    command = [sys.executable, "-m", "pairbus", "demo", "--serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            while not list(short_folder.glob("pairbus-demo-*/contoso/control.sock")):  # until the first broker runs
                assert process.poll() is None
                time.sleep(0.01)
            brokers = [pid for pid in descendants(process.pid) if "broker" in command_of(pid)]
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 1
        finally:
            process.kill()
        assert process.stderr.read() == "pairbus: stopped by SIGTERM; nothing was left behind\n"
    left = [pid for pid in brokers if command_of(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert brokers and not left
    assert list(short_folder.glob("pairbus-demo-*")) == []
