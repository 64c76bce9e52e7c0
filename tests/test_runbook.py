"""Commands of docs/failover.md and docs/failover-operating.md, typed against three namespaces, runbook in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus import PairedServiceBusClient, State
from pairbus.spool import Spool
from tests.backlog import put_diverted_sync
from tests.pages import taking
from tests.spool.entries import entries
from tests.terminal import Terminal

BACKLOG = "contoso/x-servicebus-transfer/3"


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """`contoso` is the primary, `fabrikam` the secondary, and `spare` the namespace that takes over at the end."""
    with Terminal() as terminal:
        control = terminal.folder / "control"
        control.mkdir(mode=0o700)
        monkeypatch.setenv("PAIRBUS_CONTROL_DIR", str(control))
        terminal.broker("pairbus broker --namespace contoso=5672 --namespace fabrikam=5673 --namespace spare=5674")
        for name, queue in (("contoso", "orders --duplicate-window 1d"), ("spare", "orders"), ("fabrikam", BACKLOG)):
            terminal.typed(f"pairbus queue create {queue} --connection-string @{name}.txt")
        terminal.replaced |= {
            "PRIMARY='Endpoint=sb://…'": "PRIMARY=@contoso.txt",
            "SECONDARY='Endpoint=sb://…'": "SECONDARY=@fabrikam.txt",
            "/var/spool/orders": str(tmp_path / "spool"),
            "4711": str(os.getpid()),
        }
        yield terminal


@pytest.mark.slow
@pytest.mark.deep
def test_every_command_of_the_runbook_works(terminal: Terminal) -> None:
    """Each finds what the page says that it is for: a client to switch, messages, dead letters, a spool."""
    with taking("test_every_command_of_the_runbook_works") as take:
        *lines, syphon = take("export PAIRBUS_PRIMARY").splitlines()
        told = terminal.typed("\n".join(lines) + "\n")
        assert "created" in told
        terminal.started(syphon, "10 backlog queues").stop()
        switched(terminal, take("pairbus client list"))
        spool(terminal, 3)
        once, watch, spooled = take("pairbus status").splitlines()
        assert "waiting: 0 messages; 0 dead letters" in terminal.typed(once)
        terminal.started(watch, "^since the last look: ")
        assert "\torders\t3\t" in terminal.typed(spooled)
        until_stopped, until_empty = take("pairbus syphon --primary @contoso.txt").splitlines()
        terminal.started(until_stopped, "10 backlog queues").stop()
        assert terminal.typed(until_empty).startswith("moved 0 messages")
        redriven(terminal, take("pairbus redrive"))
        assert "forwarded 3 messages" in terminal.typed(take("pairbus spool list"))
        spool(terminal, 2)
        put_diverted_sync(connection_string(terminal, "fabrikam"), BACKLOG, "orders", [ServiceBusMessage("late")])
        told = terminal.typed(take("pairbus syphon --primary-name contoso"))
        assert "moved 2 messages" in told and "forwarded 2 messages" in told, told


def connection_string(terminal: Terminal, name: str) -> str:
    return (terminal.folder / f"{name}.txt").read_text()


def spool(terminal: Terminal, count: int) -> None:
    """Leave messages in the spool of a client that is gone."""
    folder = Spool(Path(terminal.replaced["/var/spool/orders"]))
    folder.append(entries(range(count)))
    folder.close()


def switched(terminal: Terminal, text: str) -> None:
    """Type the commands for a client of this process, and look at its state after each."""
    pair = connection_string(terminal, "contoso"), connection_string(terminal, "fabrikam")
    expected = [State.HEALTHY, State.HELD_OVER, State.HELD_OVER, State.HEALTHY]
    with (
        PairedServiceBusClient.from_connection_strings(*pair, control_socket=True) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("a book"))
        for line, state in zip(text.splitlines(), expected, strict=True):
            terminal.typed(line)
            assert client.states() == {"orders": state}, line


def redriven(terminal: Terminal, text: str) -> None:
    """Type the commands for dead letters of a backlog queue, of a queue that remembers them, and with new ids."""
    away, home = connection_string(terminal, "fabrikam"), connection_string(terminal, "contoso")
    put_diverted_sync(away, BACKLOG, "orders", [ServiceBusMessage("diverted")])
    for ends, queue in ((away, BACKLOG), (home, "orders")):
        with ServiceBusClient.from_connection_string(ends) as client, client.get_queue_receiver(queue) as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=30)
            receiver.dead_letter_message(message)
    backlog, remembered, renamed = text.splitlines()
    assert "moved 1 message" in terminal.typed(backlog)
    assert "moved 0 messages" in terminal.typed(remembered, code=1)
    assert "moved 1 message" in terminal.typed(renamed)
