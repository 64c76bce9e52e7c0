"""`pairbus pair create` end to end, on a secondary whose answers a test plans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.cli import main
from tests.broker.admin_world import SEND_KEY, AdminServer, serve

PRIMARY = "Endpoint=sb://contoso.servicebus.windows.net;SharedAccessKeyName=n;SharedAccessKey=primarykey"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    with serve(tmp_path_factory.mktemp("pair")) as server:
        yield server


@pytest.fixture
def server(running: AdminServer, monkeypatch: pytest.MonkeyPatch) -> AdminServer:
    running.namespace.forget_tests()
    running.namespace.planned_error = None
    monkeypatch.setenv("PAIRBUS_PRIMARY", PRIMARY)
    monkeypatch.setenv("PAIRBUS_SECONDARY", running.connection_string(host="127.0.0.1"))
    return running


class Command:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """(exit code, standard output, standard error)"""
        with pytest.raises(SystemExit) as caught:
            main(["pair", "create", *arguments])
        shown = self._capsys.readouterr()
        assert "Traceback" not in shown.err
        assert "primarykey" not in shown.out + shown.err
        return int(caught.value.code or 0), shown.out, shown.err


@pytest.fixture
def pair_create(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def test_it_says_what_was_created_and_what_was_found(server: AdminServer, pair_create: Command) -> None:
    """The second run changes nothing."""
    server.namespace.add("contoso/x-servicebus-transfer/1")
    code, out, err = pair_create("--backlog-queue-count", "3")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "created contoso/x-servicebus-transfer/0",
        "found contoso/x-servicebus-transfer/1",
        "created contoso/x-servicebus-transfer/2",
    ]
    code, out, _ = pair_create("--backlog-queue-count", "3")
    assert code == 0 and all(line.startswith("found ") for line in out.splitlines())


def test_connection_strings_come_from_files(
    server: AdminServer, pair_create: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process of the machine can read a command line."""
    monkeypatch.delenv("PAIRBUS_PRIMARY")
    monkeypatch.delenv("PAIRBUS_SECONDARY")
    files = [tmp_path / "primary", tmp_path / "secondary"]
    files[0].write_text(PRIMARY + "\n")
    files[1].write_text(server.connection_string(host="127.0.0.1") + "\n")
    code, out, _ = pair_create("--primary", f"@{files[0]}", "--secondary", f"@{files[1]}", "--backlog-queue-count", "1")
    assert (code, out) == (0, "created contoso/x-servicebus-transfer/0\n")
    code, _, err = pair_create("--primary", f"@{files[0]}", "--secondary", f"@{tmp_path / 'none'}")
    assert code == 1 and "cannot be read" in err


def test_a_name_makes_the_primary_needless(
    server: AdminServer, pair_create: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The primary's key never has to be on the machine that provisions."""
    monkeypatch.delenv("PAIRBUS_PRIMARY")
    code, out, _ = pair_create("--primary-name", "northwind", "--backlog-queue-count", "1", "--json")
    shown = json.loads(out)
    assert code == 0 and shown["created"] == ["northwind/x-servicebus-transfer/0"]
    assert (shown["found"], shown["left_out"], shown["warnings"]) == ([], {}, [])


def test_without_the_manage_claim_it_says_so(server: AdminServer, pair_create: Command) -> None:
    """The error is one line without a key, and the exit code is 1."""
    code, out, err = pair_create("--secondary", server.connection_string(SEND_KEY, "127.0.0.1"))
    assert (code, out) == (1, "") and len(err.splitlines()) == 1
    assert "Manage claim" in err and SEND_KEY.key not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--primary-name", "not/a/segment"], "legal path segment"),
        (["--backlog-queue-count", "0"], "--backlog-queue-count"),
        (["--secondary", ""], "PAIRBUS_SECONDARY"),
        (["--primary", ""], "PAIRBUS_PRIMARY"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    arguments: list[str], words: str, server: AdminServer, pair_create: Command
) -> None:
    """The error names what is wrong."""
    code, _, err = pair_create(*arguments)
    assert code == 2 and words in " ".join(err.split())
    assert not server.namespace.catalog.queues


def test_a_secondary_that_nobody_answers_for_is_one_line(server: AdminServer, pair_create: Command) -> None:
    """Port 1 is closed."""
    code, _, err = pair_create("--secondary", server.connection_string(host="127.0.0.1").replace(str(server.port), "1"))
    assert code == 1 and "cannot be reached" in err and len(err.splitlines()) == 1


def test_a_namespace_is_not_its_own_secondary(server: AdminServer, pair_create: Command) -> None:
    """Backlog queues in it would be of no use."""
    code, _, err = pair_create("--primary", server.connection_string(host="127.0.0.1"))
    assert code == 1 and "a pair needs two" in err
    assert not server.namespace.catalog.queues
