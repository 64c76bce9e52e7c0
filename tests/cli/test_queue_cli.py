"""`pairbus queue` end to end: the command line, the genuine client, the real administration application."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pairbus import __version__
from pairbus.auth.sas import SharedAccessKey
from pairbus.broker.description import QueueDescription
from pairbus.cli.admin.admin_client import administration
from pairbus.cli.admin.plain_queues import FIELDS, PAGE_SIZE, plain_queue, plain_queues
from pairbus.errors import StoreFull
from pairbus.settings.durations import UNLIMITED
from tests.broker.admin_world import LISTEN_KEY, ROOT_KEY, AdminServer, serve
from tests.cli.command import Command, Outcome


@pytest.fixture
def pairbus(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    with serve(tmp_path_factory.mktemp("cli")) as server:
        yield server


@pytest.fixture
def server(running: AdminServer, monkeypatch: pytest.MonkeyPatch) -> AdminServer:
    running.namespace.forget_tests()
    running.namespace.planned_error = None
    monkeypatch.setenv("PAIRBUS_CONNECTION_STRING", running.connection_string())
    return running


def stored(server: AdminServer, path: str) -> QueueDescription:
    return replace(server.namespace.catalog.queues[path].description, created_ms=0, updated_ms=0)


def test_create_without_options_leaves_the_defaults_to_the_service(pairbus: Command, server: AdminServer) -> None:
    """The command sends no value of its own, to our broker or to Azure."""
    assert pairbus("queue", "create", "Orders") == Outcome(0, "created Orders\n", "")
    assert stored(server, "orders") == QueueDescription("Orders")


def test_create_sets_every_setting(pairbus: Command, server: AdminServer) -> None:
    """Durations as seconds or ISO-8601; a duplicate window turns the detection on."""
    options = {
        "--lock-duration": "90",
        "--max-size-mb": "5120",
        "--ttl": "p1dt12h",
        "--duplicate-window": "PT20S",
        "--max-delivery-count": "2147483647",
        "--max-message-size-kb": "2048",
        "--status": "receivedisabled",
        "--auto-delete-on-idle": "600.5",
    }
    path = "contoso/x-servicebus-transfer/0"
    words = [word for pair in options.items() for word in pair]
    assert pairbus("queue", "create", path, "--dead-letter-on-expiration", *words).code == 0
    assert stored(server, path) == QueueDescription(
        path,
        lock_duration_ms=90_000,
        max_size_mb=5120,
        default_ttl_ms=36 * 3_600_000,
        dead_letter_on_expiration=True,
        requires_duplicate_detection=True,
        duplicate_window_ms=20_000,
        max_delivery_count=2_147_483_647,
        max_message_size_kb=2048,
        status="ReceiveDisabled",
        auto_delete_on_idle_ms=600_500,
    )


def test_list_shows_counts_and_narrows_by_prefix(pairbus: Command, server: AdminServer) -> None:
    """Outside a terminal: one line per queue, tab-separated, for scripts."""
    for path in ("contoso/1", "contoso/0", "Contoso/2", "other"):
        server.namespace.add(path)
    server.namespace.counts["contoso/0"] = {
        "active": 5,
        "dead_lettered": 1,
        "scheduled": 2,
        "deferred": 3,
        "size_bytes": 77,
    }
    listed = pairbus("queue", "list", "--prefix", "CONTOSO/")
    lines = listed.out.splitlines()
    assert listed.err == "3 in all: 5 active, 1 dead lettered, 2 scheduled, 3 deferred, 77 size bytes\n"
    assert lines == [
        "name\tstatus\tactive\tdead_lettered\tscheduled\tdeferred\tsize_bytes",
        "contoso/0\tActive\t5\t1\t2\t3\t77",
        "contoso/1\tActive\t0\t0\t0\t0\t0",
        "Contoso/2\tActive\t0\t0\t0\t0\t0",
    ]
    everything = json.loads(pairbus("queue", "list", "--json").out)
    assert [queue["name"] for queue in everything] == ["contoso/0", "contoso/1", "Contoso/2", "other"]
    assert everything[0] == {
        "name": "contoso/0",
        "status": "Active",
        "active": 5,
        "dead_lettered": 1,
        "scheduled": 2,
        "deferred": 3,
        "size_bytes": 77,
    }


def test_list_is_sorted_and_leaves_out_empty_queues(pairbus: Command, server: AdminServer) -> None:
    """An operator looks for the longest queue first."""
    for path, active, size in (("a", 1, 10), ("b", 0, 0), ("c", 7, 5)):
        server.namespace.add(path)
        counts = {"active": active, "dead_lettered": 0, "scheduled": 0, "deferred": 0, "size_bytes": size}
        server.namespace.counts[path] = counts
    by_count = pairbus("queue", "list", "--non-empty", "--sort", "active", "--json")
    assert [queue["name"] for queue in json.loads(by_count.out)] == ["c", "a"]
    by_size = pairbus("queue", "list", "--sort", "size", "--json")
    assert [queue["name"] for queue in json.loads(by_size.out)] == ["a", "c", "b"]
    assert pairbus("queue", "list", "--sort", "colour").code == 2


def test_a_broker_on_this_machine_is_listed_as_the_sdk_would(server: AdminServer) -> None:
    """Page by page, with every count."""
    for number in range(PAGE_SIZE * 2):  # a full last page is followed by an empty one
        server.namespace.add(f"q{number}")
    server.namespace.counts["q7"] = {
        "active": 5,
        "dead_lettered": 1,
        "scheduled": 2,
        "deferred": 3,
        "transfer": 4,
        "transfer_dead_lettered": 6,
        "size_bytes": 77,
    }
    with administration(server.connection_string()) as client:
        settings = {queue.name: queue for queue in client.list_queues()}
        runtime = {queue.name: queue for queue in client.list_queues_runtime_properties()}
    found = plain_queues(server.connection_string())
    assert found is not None
    for queue in found:
        known = runtime.pop(queue.name), settings[queue.name]
        for field in FIELDS:
            given = [_plain(getattr(one, field)) for one in known if hasattr(one, field)]
            assert _plain(getattr(queue, field)) in given, (queue.name, field)
    assert not runtime and len(found) == PAGE_SIZE * 2
    assert plain_queue(server.connection_string(), "q7") in found


def _plain(value: object) -> object:
    """Compare durations as they are shown: no limit is none."""
    return min(value, UNLIMITED) if isinstance(value, timedelta) else value


@pytest.mark.parametrize(
    ("words", "line"),
    [(["list"], "orders\tActive\t0\t0\t0\t0\t0"), (["show", "orders"], "name\torders")],
    ids=["list", "show"],
)
def test_queues_of_this_machine_are_read_without_the_sdk(server: AdminServer, words: list[str], line: str) -> None:
    """An operator's most frequent commands should not wait for imports."""
    server.namespace.add("orders")
    code = f"""if True:
        import sys
        from pairbus.cli import main
        try:
            main(["queue", *{words}])
        finally:
            print(sorted({{"azure", "aiohttp", "rich"}} & set(sys.modules)))
    """
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (told.stdout.splitlines()[1], told.stdout.splitlines()[-1]) == (line, "[]")


@pytest.mark.parametrize(
    "changed",
    [("UseDevelopmentEmulator=true", ""), ("localhost", "broker.test"), ("SAS_KEY_VALUE", "wrong")],
    ids=["another service", "another machine", "a wrong key"],
)
def test_listing_of_a_foreign_address_is_left_to_the_sdk(server: AdminServer, changed: tuple[str, str]) -> None:
    """The SDK has the words for every error, and the ways through proxies."""
    assert plain_queues(server.connection_string().replace(*changed)) is None


def test_in_a_terminal_a_listing_is_a_table(
    pairbus: Command, server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People read a table more easily than columns that are divided by tabs."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    server.namespace.add("orders")
    out = pairbus("queue", "list").out
    assert "dead lettered" in out
    assert "orders" in out
    assert "─" in out


def test_show_tells_settings_and_counts(pairbus: Command, server: AdminServer) -> None:
    """JSON has seconds, and null where there is no limit."""
    pairbus("queue", "create", "orders", "--ttl", "PT1H", "--duplicate-window", "30")
    server.namespace.counts["orders"] = {"active": 2, "deferred": 1, "size_bytes": 10, "accessed_ms": 0}
    shown = json.loads(pairbus("queue", "show", "orders", "--json").out)
    assert shown.pop("created_at") == shown.pop("updated_at")
    assert shown == {
        "name": "orders",
        "status": "Active",
        "lock_duration_s": 60,
        "max_size_mb": 1024,
        "max_message_size_kb": 1024,
        "ttl_s": 3600,
        "dead_letter_on_expiration": False,
        "duplicate_window_s": 30,
        "max_delivery_count": 10,
        "auto_delete_on_idle_s": None,
        "requires_session": False,
        "partitioned": False,
        "forward_to": None,
        "forward_dead_lettered_to": None,
        "user_metadata": None,
        "active": 2,
        "dead_lettered": 0,
        "scheduled": 0,
        "deferred": 1,
        "size_bytes": 10,
        "transfer": 0,
        "transfer_dead_lettered": 0,
        "accessed_at": None,
    }
    assert "auto_delete_on_idle_s\t-\n" in pairbus("queue", "show", "orders").out


def test_delete_deletes(pairbus: Command, server: AdminServer) -> None:
    """The case of the letters in the name does not matter."""
    server.namespace.add("orders")
    assert pairbus("queue", "delete", "ORDERS", "--yes") == Outcome(0, "deleted ORDERS\n", "")
    assert not server.namespace.catalog.queues


def test_the_connection_string_comes_from_an_option_a_file_or_the_environment(
    pairbus: Command, server: AdminServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Secrets need not stand on a command line, where every user of the machine can read them."""
    file = tmp_path / "connection"
    file.write_text(server.connection_string() + "\n")
    assert pairbus("queue", "list").code == 0
    monkeypatch.setenv("PAIRBUS_CONNECTION_STRING", "wrong")
    assert pairbus("queue", "list").code == 1
    assert pairbus("queue", "list", "--connection-string", server.connection_string()).code == 0
    assert pairbus("queue", "list", "--connection-string-file", str(file)).code == 0
    assert "cannot be read" in pairbus("queue", "list", "--connection-string-file", str(tmp_path / "no")).err
    monkeypatch.delenv("PAIRBUS_CONNECTION_STRING")
    outcome = pairbus("queue", "list")
    assert outcome.code == 2
    assert "PAIRBUS_CONNECTION_STRING" in outcome.err


def test_the_connection_string_is_given_by_its_place(
    pairbus: Command, server: AdminServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As every other command takes it; also when the variable that is read by itself names the place."""
    file = tmp_path / "contoso.txt"
    file.write_text(server.connection_string() + "\n")
    monkeypatch.setenv("CONTOSO", server.connection_string())
    monkeypatch.setenv("PAIRBUS_CONNECTION_STRING", f"@{file}")
    assert pairbus("queue", "list").code == 0
    monkeypatch.setenv("PAIRBUS_CONNECTION_STRING", "wrong")
    assert pairbus("queue", "list", "--connection-string", "env:CONTOSO").code == 0
    for command in (["create", "orders"], ["list"], ["show", "orders"], ["delete", "orders", "--yes"]):
        assert pairbus("queue", *command, "--connection-string", f"@{file}").code == 0, command


@pytest.mark.parametrize(
    ("option", "place", "told"),
    [
        ("--connection-string", "@{folder}/none.txt", "the file {folder}/none.txt cannot be read: No such file"),
        ("--connection-string", "@{folder}/empty.txt", "the file {folder}/empty.txt is empty"),
        ("--connection-string", "@{folder}", "Is a directory"),
        ("--connection-string", "env:NOT_SET", "the environment variable NOT_SET is not set, or empty"),
        ("--connection-string-file", "{folder}/empty.txt", "the file {folder}/empty.txt is empty"),
    ],
)
def test_a_place_without_a_connection_string_is_named(
    pairbus: Command, server: AdminServer, tmp_path: Path, option: str, place: str, told: str
) -> None:
    """With the option and what is wrong with it, in one line; and nothing else is taken instead."""
    (tmp_path / "empty.txt").write_text(" \n")
    outcome = pairbus("queue", "list", option, place.format(folder=tmp_path))
    assert outcome.code == 1 and outcome.err.count("\n") == 1
    assert f"{option}: " in outcome.err and told.format(folder=tmp_path) in outcome.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["list", "--connection-string", "@"], "--connection-string @ names no file"),
        (["list", "--connection-string", "env:"], "--connection-string env: names no variable"),
        (["create", ""], "the name of the queue is empty"),
    ],
)
def test_what_names_nothing_is_wrong_usage(
    pairbus: Command, server: AdminServer, arguments: list[str], told: str
) -> None:
    outcome = pairbus("queue", *arguments)
    assert outcome.code == 2 and told in outcome.err


def test_a_file_may_begin_with_a_byte_order_mark(pairbus: Command, server: AdminServer, tmp_path: Path) -> None:
    """As some editors write it."""
    file = tmp_path / "contoso.txt"
    file.write_text(server.connection_string(), encoding="utf-8-sig")
    assert pairbus("queue", "list", "--connection-string", f"@{file}").code == 0


def test_a_name_is_whole_in_a_narrow_terminal(
    pairbus: Command, server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are longer than the terminal instead: a name that is cut off cannot be copied."""
    name = "contoso/x-servicebus-transfer/" + "1" * 60
    assert pairbus("queue", "create", name).code == 0
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert name in pairbus("queue", "list").out


def test_a_ca_file_can_be_given_instead_of_fetched(pairbus: Command, server: AdminServer, tmp_path: Path) -> None:
    """For brokers on other machines, whose certificate must come by a safer way than the network."""
    plain = server.connection_string().replace("UseDevelopmentEmulator=true", "")
    assert pairbus("queue", "list", "--connection-string", plain, "--ca-file", server.ca_file).code == 0
    assert "CERTIFICATE_VERIFY_FAILED" in pairbus("queue", "list", "--connection-string", plain).err
    assert "No such file" in pairbus("queue", "list", "--ca-file", str(tmp_path / "absent.pem")).err
    remote = server.connection_string(host="broker.example")
    assert "--ca-file" in pairbus("queue", "list", "--connection-string", remote).err


def test_a_proxy_of_the_environment_is_not_asked_about_this_machine(
    pairbus: Command, server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Company laptops have one set, and it cannot reach our loopback."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server.namespace.add("orders")
    assert pairbus("queue", "list").code == 0
    assert pairbus("queue", "show", "orders").code == 0  # through the SDK


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "absent"), ["there is no queue 'absent' in", "pairbus queue list"]),
        (("delete", "absent", "--yes"), ["there is no queue 'absent' in", "pairbus queue list"]),
        (("create", "orders"), ["'orders' exists already"]),
        (("create", "a b"), ["'a b'", "are allowed"]),
    ],
)
def test_a_refusal_is_one_line_in_the_brokers_words(
    pairbus: Command, server: AdminServer, arguments: tuple[str, ...], words: list[str]
) -> None:
    """The SDK's own text would be 'Operation returned an invalid status'."""
    server.namespace.add("orders")
    outcome = pairbus("queue", *arguments)
    assert outcome.code == 1
    assert outcome.out == ""
    assert len(outcome.err.splitlines()) == 1
    for word in ["pairbus: ", f"localhost:{server.port}", *words]:
        assert word in outcome.err


def test_show_of_a_topic_names_the_right_command(pairbus: Command, server: AdminServer) -> None:
    """The SDK raises an AttributeError for it."""
    assert pairbus("topic", "create", "orders").code == 0
    outcome = pairbus("queue", "show", "orders")
    assert outcome.code == 1 and "pairbus topic show orders" in outcome.err


def test_delete_of_another_kind_is_refused(pairbus: Command, server: AdminServer) -> None:
    """The service deletes whatever has the path: a topic would go with all its subscriptions."""
    assert pairbus("topic", "create", "events").code == 0
    server.namespace.add("orders")
    outcome = pairbus("queue", "delete", "events", "--yes")
    assert outcome.code == 1 and "events is no queue, but a topic" in outcome.err
    for words in (("show",), ("update", "--ttl", "5m"), ("delete", "--yes")):
        outcome = pairbus("topic", words[0], "orders", *words[1:])
        assert outcome.code == 1 and "orders is no topic, but a queue" in outcome.err
    assert server.namespace.queue_keys() == ["orders"] and server.namespace.topic_keys() == ["events"]


def test_a_wrong_key_says_so_and_does_not_show_it(pairbus: Command, server: AdminServer) -> None:
    """A key without the right to manage gives the same kind of error, and is not shown either."""
    wrong = SharedAccessKey(ROOT_KEY.name, "wrong-secret")
    outcome = pairbus("queue", "list", "--connection-string", server.connection_string(wrong))
    assert (outcome.code, len(outcome.err.splitlines())) == (1, 1)
    assert "refused the key" in outcome.err
    assert "does not match" in outcome.err
    assert "wrong-secret" not in outcome.err
    listener = server.connection_string(LISTEN_KEY)
    assert "Manage claim is required" in pairbus("queue", "create", "q", "--connection-string", listener).err


def test_a_full_disk_is_told(pairbus: Command, server: AdminServer) -> None:
    """The command does not try again: a full disk stays full for more than a few seconds."""
    server.namespace.planned_error = StoreFull("the disk is full; free some space")
    outcome = pairbus("queue", "create", "q")
    assert outcome.code == 1
    assert "the disk is full; free some space" in outcome.err


def test_a_broker_that_is_not_there_is_told_at_once(pairbus: Command) -> None:
    """The error says what to do about it."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=k;SharedAccessKey=v;UseDevelopmentEmulator=true"
    outcome = pairbus("queue", "list", "--connection-string", text)
    assert (outcome.code, len(outcome.err.splitlines())) == (1, 1)
    assert f"cannot reach 127.0.0.1:{port}" in outcome.err
    assert "is the broker running?" in outcome.err


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "Endpoint=sb://localhost:5672",
        "Endpoint=sb://localhost:99999;SharedAccessKeyName=k;SharedAccessKey=v",
        "SharedAccessKeyName=k;SharedAccessKey=v",
        "Endpoint=sb://localhost:5672;SharedAccessKey=v",
        "Endpoint=sb://a..b;SharedAccessKeyName=k;SharedAccessKey=v",
        f"Endpoint=sb://{'a' * 64}.example;SharedAccessKeyName=k;SharedAccessKey=v",
    ],
)
def test_a_wrong_connection_string_is_told_in_one_line(pairbus: Command, text: str) -> None:
    """The string is checked before anything is sent."""
    outcome = pairbus("queue", "list", "--connection-string", text)
    assert (outcome.code, len(outcome.err.splitlines())) == (1, 1)
    assert "connection string" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("create",),
        ("create", "q", "--lock-duration", "soon"),
        ("create", "q", "--ttl", "P1M"),
        ("create", "q", "--ttl", "-5"),
        ("create", "q", "--max-size-mb", "0"),
        ("create", "q", "--status", "Sleeping"),
        ("rename", "q"),
    ],
)
def test_wrong_usage_exits_with_2(pairbus: Command, server: AdminServer, arguments: tuple[str, ...]) -> None:
    """Scripts can tell a typing mistake from a refusal."""
    assert pairbus("queue", *arguments).code == 2
    assert not server.namespace.catalog.queues


def test_help_has_examples_and_whole_option_names(pairbus: Command) -> None:
    """A terminal of eighty columns cuts off no option name either."""
    text = pairbus("queue", "create", "--help").out
    assert "pairbus queue create orders --lock-duration 30 --max-delivery-count 5" in text
    assert "--connection-string-file" in text
    assert "--max-message-size-kb" in text


def test_the_installed_module_runs_as_a_program() -> None:
    """`python -m pairbus` and the console script share one entry."""
    done = subprocess.run(
        [sys.executable, "-m", "pairbus", "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"pairbus {__version__}\n")


def test_delete_asks_and_takes_no_for_an_answer(
    pairbus: Command, server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are gone for good; where nobody can be asked, --yes is needed."""
    server.namespace.add("orders")
    outcome = pairbus("queue", "delete", "orders")
    assert (outcome.code, outcome.out) == (1, "")
    assert "queue orders with every message in it would be deleted; give --yes" in outcome.err
    for answer, code in (("n", 1), ("y", 0)):
        assert "orders" in server.namespace.catalog.queues
        monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
        outcome = pairbus("queue", "delete", "orders")
        assert outcome.code == code
        assert "Delete queue orders with every message in it?" in outcome.err
    assert not server.namespace.catalog.queues


class Terminal(io.StringIO):
    """Standard input with somebody who answers."""

    def isatty(self) -> bool:
        return True


def test_update_changes_what_was_given(pairbus: Command, server: AdminServer) -> None:
    """The other settings stay; an empty text clears one, and `never` takes a limit away."""
    server.namespace.add("graveyard")
    pairbus("queue", "create", "orders", "--ttl", "PT1H", "--max-delivery-count", "3", "--user-metadata", "note")
    assert pairbus(
        "queue", "update", "Orders", "--ttl", "never", "--lock-duration", "30", "--user-metadata", "",
        "--forward-dead-lettered-to", "graveyard", "--status", "senddisabled",
    ) == Outcome(0, "updated Orders\n", "")  # fmt: skip
    assert stored(server, "orders") == QueueDescription(
        "orders",
        lock_duration_ms=30_000,
        max_delivery_count=3,
        status="SendDisabled",
        forward_dead_lettered_to="graveyard",
    )
    nothing = pairbus("queue", "update", "orders")
    assert nothing.code == 2
    assert "no setting was given" in nothing.err


def test_create_takes_sessions_partitions_and_forwarding(pairbus: Command, server: AdminServer) -> None:
    """`queue show` shows these settings."""
    server.namespace.add("orders")
    pairbus("queue", "create", "inbox", "--forward-to", "orders", "--partitioned")
    pairbus("queue", "create", "talks", "--requires-session")
    assert stored(server, "inbox") == QueueDescription("inbox", forward_to="orders", enable_partitioning=True)
    assert stored(server, "talks") == QueueDescription("talks", requires_session=True)
    assert json.loads(pairbus("queue", "show", "inbox", "--json").out)["forward_to"] == "orders"
    assert "no queue or topic 'absent'" in pairbus("queue", "create", "x", "--forward-to", "absent").err


def test_name_that_is_not_utf8_is_told(pairbus: Command, server: AdminServer) -> None:
    """A shell passes any bytes; no entity can have such a name."""
    outcome = pairbus("queue", "create", "a\udcff")
    assert (outcome.code, "'a\\udcff' is not text in UTF-8" in outcome.err) == (2, True)


def test_export_to_an_impossible_file_is_told(pairbus: Command, server: AdminServer) -> None:
    """The folder /proc looks writable, and no file can be made there."""
    outcome = pairbus("namespace", "export", "--name", "contoso", "--out", "/proc/x")
    assert (outcome.code, outcome.err.count("\n"), "--out /proc/x" in outcome.err) == (1, 1, True)
