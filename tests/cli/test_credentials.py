"""Microsoft Entra ID in every command: hosts and `--credential` instead of connection strings.

The broker takes keys only. So these tests look at what reaches the transport and the administration client.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pairbus.cli import main
from pairbus.cli.pair import draining
from pairbus.cli.pipeline import pumping
from pairbus.client.sides import Side
from pairbus.pairing.provision import Provisioned
from pairbus.sdk import administration
from pairbus.transport.tokens.credential import AzureToken
from pairbus.transport.tokens.named_credential import made_credential

HOME, AWAY = "contoso.servicebus.windows.net", "fabrikam.servicebus.windows.net"
VARIABLES = ("PAIRBUS_PRIMARY", "PAIRBUS_SECONDARY", "PAIRBUS_TARGET", "PAIRBUS_CONNECTION_STRING")
KEY = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"


class FakeCredential:
    """Gives no token: nothing is connected to here."""

    def get_token(self, *scopes: str, **options: Any) -> None:
        raise AssertionError("nobody asks for a token")


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module with a credential, as `MODULE:CALLABLE` names it, and in the place of azure-identity."""
    for name, attribute in (("fakes", "make"), ("azure.identity", "DefaultAzureCredential")):
        module = ModuleType(name)
        setattr(module, attribute, FakeCredential)
        monkeypatch.setitem(sys.modules, name, module)
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    made_credential.cache_clear()
    yield
    made_credential.cache_clear()


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


def is_fake(side: Side, host: str) -> bool:
    """The credential reaches our transport, over TLS, and the SDK's administration client."""
    assert isinstance(side.credential, AzureToken) and isinstance(side.credential.credential, FakeCredential)
    assert (side.endpoint.host, side.endpoint.port, side.endpoint.tls) == (host, 5671, True)
    admin: Any = side.new_admin()
    try:
        return isinstance(admin._credential, FakeCredential) and side.authority == host
    finally:
        admin.close()


class Sides:
    """Takes the sides of a command, which then ends at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[Side] = []

        async def nothing(self: Any, *arguments: Any, **options: Any) -> bool:
            return False

        genuine = pumping.Pumping.__init__

        def take(pump: Any, home: Side, away: Side, *arguments: Any, **options: Any) -> None:
            self.taken += [home, away]
            genuine(pump, home, away, *arguments, **options)

        monkeypatch.setattr(pumping.Pumping, "__init__", take)
        monkeypatch.setattr(pumping.Pumping, "syphon", nothing)
        monkeypatch.setattr(pumping.Pumping, "redrive", nothing)


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Sides:
    return Sides(monkeypatch)


@pytest.mark.parametrize("name", ["default", "fakes:make"])
def test_syphon_takes_hosts_and_a_credential(sides: Sides, name: str) -> None:
    assert run("syphon", "--primary", HOME, "--secondary", AWAY, "--credential", name) == 0
    home, away = sides.taken
    assert is_fake(home, HOME) and is_fake(away, AWAY)


def test_a_connection_string_may_stand_beside_a_host(sides: Sides) -> None:
    """One namespace may have keys, and the other none."""
    assert run("syphon", "--primary", KEY, "--secondary", AWAY, "--credential", "default") == 0
    home, away = sides.taken
    assert not isinstance(home.credential, AzureToken) and is_fake(away, AWAY)


def test_redrive_takes_a_namespace_and_a_credential(sides: Sides) -> None:
    assert run("redrive", "orders", "--namespace", HOME, "--target", AWAY, "--credential", "default") == 0
    home, origin = sides.taken
    assert is_fake(home, AWAY) and is_fake(origin, HOME)


@pytest.mark.parametrize("source", [("--namespace", HOME), ("--connection-string", KEY)])
def test_message_move_takes_a_host_as_target(monkeypatch: pytest.MonkeyPatch, source: tuple[str, str]) -> None:
    """The target takes --credential as every other command does; the source may have a key."""
    taken: list[Side] = []

    def carry_out(sides: list[Side], *rest: object) -> None:
        taken.extend(sides)

    monkeypatch.setattr("pairbus.cli.messages.run.carry_out", carry_out)
    assert (
        run("message", "move", "orders", "orders", "--yes", *source, "--target", AWAY, "--credential", "default") == 0
    )
    home, away = taken
    assert is_fake(home, HOME) if source[1] == HOME else not isinstance(home.credential, AzureToken)
    assert is_fake(away, AWAY)


def test_pair_create_takes_hosts_and_a_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[Side, str]] = []

    async def find_or_create(side: Side, name: str, count: int) -> Provisioned:
        taken.append((side, name))
        return Provisioned(())

    monkeypatch.setattr("pairbus.client.provisioning.find_or_create", find_or_create)
    assert run("pair", "create", "--primary", HOME, "--secondary", AWAY, "--credential", "default") == 0
    [(side, name)] = taken
    assert is_fake(side, AWAY) and name == "contoso"


def test_spool_drain_takes_hosts_and_a_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Side] = []
    monkeypatch.setattr(draining.SpoolDrain, "__init__", lambda self, home, away, *rest: taken.extend((home, away)))
    command = ("spool", "drain", str(tmp_path), "--primary", HOME, "--secondary", AWAY, "--credential", "default")
    assert run(*command) == 1  # exit code 1, because the folder has no spool
    assert is_fake(taken[0], HOME) and is_fake(taken[1], AWAY)


def test_queue_commands_take_a_namespace_and_a_credential(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[tuple[str, object]] = []

    class Client:
        def __init__(self, host: str, credential: object, **options: Any) -> None:
            taken.append((host, credential))

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *error: object) -> None: ...

        def get_queue(self, name: str) -> None: ...

        def delete_queue(self, name: str) -> None: ...

    monkeypatch.setattr(administration, "ServiceBusAdministrationClient", Client)
    monkeypatch.setattr(administration, "ADMINS", (Client, Client))
    assert run("queue", "delete", "orders", "--yes", "--namespace", HOME, "--credential", "fakes:make") == 0
    [(host, credential)] = taken
    assert host == HOME and isinstance(credential, FakeCredential)
    assert capsys.readouterr().out == "deleted orders\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["syphon", "--primary", HOME, "--secondary", AWAY], 1, "--credential default"),
        (["syphon", "--primary", KEY, "--secondary", KEY, "--credential", "default"], 2, "is for hosts"),
        (["syphon", "--primary", "a b/c", "--secondary", AWAY, "--credential", "default"], 2, "not the host"),
        (["syphon", "--primary", HOME, "--secondary", AWAY, "--credential", "managed"], 2, "MODULE:CALLABLE"),
        (["queue", "list", "--credential", "default"], 2, "--namespace HOST"),
        (["redrive", "orders", "--namespace", HOME], 1, "--credential default"),
        (["message", "move", "a", "b", "--connection-string", KEY, "--target", AWAY], 1, "--credential default"),
        (["message", "move", "a", "b", "--connection-string", KEY, "--credential", "default"], 2, "--namespace HOST"),
        (
            ["message", "move", "a", "b", "--connection-string", KEY, "--target", KEY, "--credential", "default"],
            2,
            "is for hosts",
        ),
    ],
)
def test_wrong_usage_says_what_to_give(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == code
    said = capsys.readouterr().err
    assert words in " ".join(said.split()) and "c2VjcmV0" not in said


def test_a_missing_azure_identity_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    assert run("syphon", "--primary", HOME, "--secondary", AWAY, "--credential", "default") == 1
    assert "pip install azure-identity" in capsys.readouterr().err


def test_callable_that_needs_arguments_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The name of the wrong function is a user's mistake, and no reason for a stack trace."""
    assert run("queue", "list", "--namespace", HOME, "--credential", "json:loads") == 1
    assert "credential json:loads on host" in (told := capsys.readouterr().err)
    assert "it cannot be called without arguments" in told and "Traceback" not in told
