"""`pairbus broker` as scripts see it: lines on standard output, one line of error, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import ROOT_KEY_NAME
from pairbus.cli import main
from pairbus.transport import Endpoint, Plain, Refused, connect

DEADLINE_S = 15.0
LINE = re.compile(
    r"(\w+) (Endpoint=sb://127\.0\.0\.1:(\d+);SharedAccessKeyName=RootManageSharedAccessKey;"
    r"SharedAccessKey=([^;]+);UseDevelopmentEmulator=true)"
)


class Running:
    """A broker process that has said `ready`."""

    def __init__(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        self.process = process
        self.lines = lines
        self.err = ""

    def connection_string(self) -> str:
        return self.lines[0].partition(" ")[2]

    def port(self) -> int:
        return int(self.lines[0].split(";", 1)[0].rpartition(":")[2])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Exit code; `err` then has what was written to standard error."""
        self.process.send_signal(number)
        _, self.err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode


@contextmanager
def broker(*arguments: object, **environment: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-m", "pairbus", "broker", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    with process:
        try:
            assert process.stdout is not None and process.stderr is not None
            lines: list[str] = []
            while line := process.stdout.readline():
                lines.append(line.rstrip("\n"))
                if lines[-1] == "ready":
                    break
            else:
                raise AssertionError(f"the broker ended with {process.wait()}: {process.stderr.read()}")
            yield Running(process, lines)
        finally:
            process.kill()


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 1) -> str:
    """Return the error text of a broker that cannot be started. With exit code 1 the text is one line."""
    with pytest.raises(SystemExit) as caught:
        main(["broker", *map(str, arguments)])
    captured = capsys.readouterr()
    assert (caught.value.code, captured.out) == (code, ""), captured.err
    if code == 1:
        assert captured.err.startswith("pairbus: ") and captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_it_prints_a_line_for_each_namespace_and_then_ready(tmp_path: Path) -> None:
    """Scripts wait for `ready` and cut the connection strings out; nothing else may be on standard output."""
    with broker(
        "--namespace", "contoso=0", "--namespace", "fabrikam=0", "--data", tmp_path / "new" / "data"
    ) as running:
        *lines, ready = running.lines
        found = [match for line in lines if (match := LINE.fullmatch(line))]
        assert [match[1] for match in found] == ["contoso", "fabrikam"] and len(lines) == 2 and ready == "ready"
        assert found[0][3] != found[1][3]
        with urllib.request.urlopen(f"http://127.0.0.1:{running.port()}/health", timeout=DEADLINE_S) as answer:
            assert json.load(answer)["status"] == "healthy"
        assert running.stop() == 0
        assert running.err == ""
    names = {path.name for path in (tmp_path / "new" / "data").iterdir()}
    assert names == {"contoso", "fabrikam", "ca.pem", "server.pem", "server.key"}


def test_on_a_terminal_it_tells_commands_that_work(tmp_path: Path) -> None:
    """A key with special characters is quoted. Elsewhere standard error stays empty, see the test above."""
    terminal, its_end = os.openpty()
    arguments = ["--namespace", "a=0", "--data", ":memory:", "--log-level", "error"]
    with subprocess.Popen(
        [sys.executable, "-m", "pairbus", "broker", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=its_end,
        env={**os.environ, "TMPDIR": str(tmp_path), "PAIRBUS_KEY": "it's $HOME"},
    ) as process:
        os.close(its_end)
        try:
            told = b""
            while b"peek orders" not in told:
                told += os.read(terminal, 4096)
            lines = told.decode().partition("in another terminal:")[2].replace("\r", "")
            script = f'set -e\npairbus() {{ "{sys.executable}" -m pairbus "$@"; }}\n{lines}'
            tried = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
            assert (tried.returncode, "hello" in tried.stdout) == (0, True), tried
        finally:
            process.kill()
            os.close(terminal)


def test_ctrl_c_is_a_clean_end_too(tmp_path: Path) -> None:
    """Without a traceback: it is how most people stop it."""
    with broker("--namespace", "a=0", "--data", tmp_path) as running:
        assert (running.stop(signal.SIGINT), running.err) == (0, "")


def test_memory_keeps_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    """`:memory:` is not the name of a folder, and the certificate goes with the process."""
    with broker("--namespace", "a=0", "--data", ":memory:", TMPDIR=str(tmp_path)) as running:
        scratch = list(tmp_path.iterdir())
        assert len(scratch) == 1 and (scratch[0] / "ca.pem").exists()
        assert running.stop() == 0
        assert running.err == f"control socket: {scratch[0] / 'control.sock'}\n"
    assert list(tmp_path.iterdir()) == []
    assert not Path(":memory:").exists()


def test_the_trace_shows_every_frame_of_a_client(tmp_path: Path) -> None:
    """A person whose SDK and broker disagree needs every frame: both directions, by name, in order."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "a", "Queues": [{"Name": "orders"}]}]}}))
    with broker("--namespace", "a=0", "--data", ":memory:", "--config", config, "--trace") as running:
        with (
            ServiceBusClient.from_connection_string(running.connection_string()) as client,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages(ServiceBusMessage("hello"))
        assert running.stop() == 0
    frames = re.findall(r"DEBUG +(<-|->) ch\d+ <?(\w+)", running.err)
    wanted = [("<-", "Open"), ("->", "Open"), ("<-", "Attach"), ("->", "Attach"), ("<-", "Transfer")]
    rest = iter([(direction, name.title()) for direction, name in frames])
    assert all(frame in rest for frame in [*wanted, ("->", "Disposition")]), running.err[:3000]


async def test_the_trace_shows_no_key_and_no_token(tmp_path: Path) -> None:
    """A trace is pasted into issues: SASL PLAIN carries the key itself, put-token a signature."""
    with broker("--namespace", "a=0", "--data", ":memory:", "--key", "c2VjcmV0", "--trace") as running:
        string = running.connection_string()
        endpoint = Endpoint.parse(string)
        plain = Endpoint(host=endpoint.host, port=endpoint.port, tls=False)
        await (await connect(plain, credential=Plain(ROOT_KEY_NAME, "c2VjcmV0"))).close()
        with pytest.raises(Refused):
            await connect(plain, credential=Plain(ROOT_KEY_NAME, "bWlzdHlwZWQ"))
        with (
            ServiceBusClient.from_connection_string(string) as client,
            pytest.raises(ServiceBusError),
            client.get_queue_sender("nowhere"),
        ):
            pass
        assert running.stop() == 0
    assert "SaslInit(mechanism='PLAIN'" in running.err
    for secret in ("c2VjcmV0", "bWlzdHlwZWQ", "SharedAccessSignature", "sig="):
        assert secret not in running.err


def test_client_without_a_key_forges_no_line_of_the_log() -> None:
    """A refused request is logged with its path, and the path may hold line ends and escape sequences."""
    with broker("--namespace", "a=0", "--data", ":memory:", "--log-level", "info") as running:
        port = Endpoint.parse(running.connection_string()).port
        path = "/x%0D2026-01-01%2000:00:00%20ERROR%20forged%1B[2J"
        with pytest.raises(urllib.error.HTTPError, match="401") as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10)
        caught.value.close()
        assert running.stop() == 0
    [line] = [line for line in running.err.splitlines() if "forged" in line]
    assert " INFO " in line and "answered 401" in line and "\x1b" not in line


def test_the_log_level_decides_what_is_told(tmp_path: Path) -> None:
    """At `warning`, the default, a start and a new queue are no news; at `info` they are."""
    config = tmp_path / "config.json"
    config.write_text('{"UserConfig": {"Namespaces": [{"Name": "a", "Queues": [{"Name": "orders"}]}]}}')
    with broker("--namespace", "a=0", "--data", ":memory:", "--config", config, "--log-level", "INFO") as running:
        assert running.stop() == 0
    assert "a: queue 'orders' created" in running.err


def test_the_root_key_of_the_configuration_is_the_one_that_is_printed(tmp_path: Path) -> None:
    """A connection string with the well-known key would not open the namespace."""
    config = tmp_path / "config.json"
    keys = [{"Name": "RootManageSharedAccessKey", "Key": "my own"}]
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "a", "Queues": [], "Keys": keys}]}}))
    with broker("--namespace", "a=0", "--data", ":memory:", "--config", config) as running:
        assert "SharedAccessKey=my own;" in running.lines[0]
        assert running.stop() == 0


def test_the_key_may_come_from_the_environment() -> None:
    """On a command line every user of the machine could read it."""
    with broker("--namespace", "a=0", "--data", ":memory:", PAIRBUS_KEY="secret") as running:
        assert "SharedAccessKey=secret;" in running.lines[0]
        assert running.stop() == 0


def test_a_second_broker_on_the_same_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second broker names the process of the first."""
    with broker("--namespace", "a=0", "--data", tmp_path) as running:
        error = refused(capsys, "--namespace", "a=0", "--data", tmp_path)
        assert f"in use by another broker (process {running.process.pid})" in error
        assert running.stop() == 0


def test_a_port_in_use_is_told(taken_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The error has the number of the port: there may be several namespaces."""
    error = refused(capsys, "--namespace", f"a={taken_port}", "--data", ":memory:")
    assert f"cannot listen on 127.0.0.1:{taken_port}: Address already in use" in error


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "broker.example"])
def test_other_addresses_than_loopback_need_a_key(
    host: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The well-known key must not open a broker to the network."""
    error = refused(capsys, "--namespace", "a=0", "--data", tmp_path / "data", "--host", host)
    assert f"listening on {host} needs a key of your own: --key or PAIRBUS_KEY" in error
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--namespace", "contoso"], "NAME=PORT is needed, for example contoso=5672"),
        (["--namespace", "contoso=99999"], "99999 is no port; ports are 1 to 65535, and 0 is any free one"),
        (["--namespace", "a b=0"], "NAME=PORT is needed"),
        (["--namespace", "a=0", "--namespace", "A=0"], "the namespace 'A' was given twice"),
        (["--config", "nowhere.json"], "nowhere.json: cannot be read"),
        (["--log-level", "loud"], "allowed are debug, info, warning, error"),
        (["--operations-per-second", "0"], "--operations-per-second is 0.0; accepted is a number above 0"),
        (["--namespace", "a=0", "--data", "/dev/null"], "Cannot make the data folder"),
        (["--namespace", "a=0", "--listen-http", "x"], "PORT or NAME=PORT is needed, for example 5300"),
        (["--namespace", "a=0", "--listen-tls", "a=65536"], "65536 is no port"),
        (["--namespace", "a=0", "--listen-tls", "b=443"], "there is no namespace 'b'"),
        (["--namespace", "a=0", "--namespace", "b=0", "--listen-http", "5300"], "say which, as NAME=5300"),
    ],
)
def test_wrong_values_are_told_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what a right value is."""
    assert words in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("namespace", "words"),
    [
        ({"Name": "b"}, "describes namespace 'b'; give it a port with --namespace b=PORT"),
        ({"Name": "a", "Topics": [{"Name": "t", "Rules": []}]}, "topic 't': unknown key 'Rules'"),
        ({"Name": "a", "Queues": [{"Name": "q", "Properties": {"MaxDeliveryCount": 0}}]}, "MaxDeliveryCount"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_named(
    namespace: dict[str, object], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The broker is not started, and no part of the configuration is left out silently."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    error = refused(capsys, "--namespace", "a=0", "--data", tmp_path / "data", "--config", config)
    assert words in error
    assert not (tmp_path / "data").exists()


def test_entities_of_the_configuration_are_served(tmp_path: Path) -> None:
    """Topics with subscriptions and rules too; an entity may forward to one that comes later in the file."""
    rule = {"Name": "red", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "color = 'red'"}}}
    namespace = {
        "Name": "a",
        "Queues": [{"Name": "first", "Properties": {"ForwardTo": "last"}}, {"Name": "last"}],
        "Topics": [
            {
                "Name": "events",
                "Subscriptions": [
                    {"Name": "reds", "Rules": [rule], "Properties": {"ForwardDeadLetteredMessagesTo": "last"}},
                    {"Name": "all"},
                ],
            }
        ],
    }
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    for _ in range(2):  # the second time all entities exist already
        with broker("--namespace", "a=0", "--data", tmp_path / "data", "--config", config) as running:
            with ServiceBusAdministrationClient.from_connection_string(
                running.connection_string(), connection_verify=str(tmp_path / "data" / "ca.pem")
            ) as admin:
                assert str(admin.get_queue("first").forward_to).endswith("/last")
                assert [found.name for found in admin.list_subscriptions("events")] == ["all", "reds"]
                assert [found.name for found in admin.list_rules("events", "reds")] == ["red"]
                assert [found.name for found in admin.list_rules("events", "all")] == ["$Default"]
            assert running.stop() == 0


def test_a_missing_destination_keeps_the_broker_from_starting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Messages would have nowhere to go."""
    namespace = {"Name": "a", "Queues": [{"Name": "q", "Properties": {"ForwardTo": "r"}}]}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    error = refused(capsys, "--namespace", "a=0", "--data", ":memory:", "--config", config)
    assert "namespace 'a': ForwardTo of 'q': there is no queue or topic 'r'" in error


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts tell a mistake in their call from a broker that cannot start."""
    assert "No such option: --bogus" in refused(capsys, "--bogus", code=2)


def test_help_has_examples_and_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """The examples stand in lines of their own and can be copied."""
    with pytest.raises(SystemExit):
        main(["broker", "--help"])
    out = capsys.readouterr().out
    for option in ("--namespace", "--data", "--config", "--host", "--key", "--log-level", "--trace"):
        assert f"  {option} " in out
    assert "\n    pairbus broker --namespace contoso=5672 --namespace fabrikam=5673 --data /var/lib/pairbus\n" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["broker"], 1, "this command needs cryptography: pip install 'pairbus[broker]'"),
        (["demo"], 1, "this command needs cryptography"),
        (["store", "salvage", "x", "--to", "y"], 1, "this command needs cryptography"),
        (["queue", "--help"], 0, ""),
        (["--version"], 0, ""),
    ],
)
def test_without_the_extra_the_other_commands_still_work(arguments: list[str], code: int, words: str) -> None:
    """A user who administers queues in Azure need not install a broker."""
    program = f"import sys; sys.modules['cryptography'] = None; from pairbus.cli import main; main({arguments!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
