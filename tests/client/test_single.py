"""A client of one namespace: the engine of the paired client without a secondary."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError

import pairbus.aio
from pairbus.client import engine
from pairbus.client.errors import ClientClosed, PairedMessagingFactoryError, ReservedPropertyError
from pairbus.host.control.asking import ask
from pairbus.ledger import read
from pairbus.pairing.events import Closed, Faulted, Recovered, Suspected
from pairbus.pairing.failover import State
from pairbus.pairing.policy import REACTIONS, FailurePolicy, Kind, Reaction
from pairbus.sdk.encoding import encode
from tests.client.forking import FORK_QUIETLY
from tests.client.messages import id_of
from tests.client.world import Client, Stage, message, new_single, until
from tests.limits import slowness
from tests.scripted import LoseAnswer, Reject
from tests.sdk.flavours import Flavour

QUEUE = "orders"
NOBODY = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
BOTH = (pairbus.ServiceBusClient, pairbus.aio.ServiceBusClient)


def attaches(stage: Stage, path: str) -> int:
    return sum(occasion.step == "attach" and occasion.path == path for occasion in stage.primary.steps)


# ── construction ──


async def test_constructor_takes_a_host_and_a_credential_as_the_sdks_does(stage: Stage, flavour: Flavour) -> None:
    """`fully_qualified_namespace` and `credential`, by position or by name, and the keywords of the SDK's client."""
    text = dict(part.split("=", 1) for part in stage.primary.connection_string.rstrip(";").split(";"))
    credential = AzureNamedKeyCredential(text["SharedAccessKeyName"], text["SharedAccessKey"])
    client = Client(
        flavour,
        BOTH[flavour == "aio"](
            fully_qualified_namespace=f"127.0.0.1:{stage.primary.port}", credential=credential, use_tls=False
        ),
        [],
    )
    await client.sender(QUEUE).send(message())
    assert client.client.fully_qualified_namespace == f"127.0.0.1:{stage.primary.port}"
    await client.close()
    assert len(stage.primary.stored(QUEUE)) == 1


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", ["failover_interval", "enable_syphon", "spool_dir", "ordered", "primary_kwargs"])
def test_option_of_a_pair_is_refused_with_the_place_where_it_belongs(kind: Any, name: str) -> None:
    """An application that sets one believes that something is done in an outage."""
    with pytest.raises(TypeError, match=f"{name} is an option of a pair.*PairedServiceBusClient.from_connection"):
        kind.from_connection_string(NOBODY, **{name: 1})
    with pytest.raises(TypeError, match=f"{name} is an option of a pair"):
        kind("contoso.servicebus.windows.net", object(), **{name: 1})


def test_misspelt_keyword_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match="'on_evnt'; did you mean 'on_event'"):
        pairbus.ServiceBusClient.from_connection_string(NOBODY, on_evnt=print)
    with pytest.raises(TypeError, match="'user_agnt'; did you mean 'user_agent'"):
        pairbus.ServiceBusClient.from_connection_string(NOBODY, user_agnt="orders/1.0")


def test_pair_says_where_a_keyword_of_one_namespace_goes() -> None:
    """Who moves from one namespace to two takes the keywords along."""
    with pytest.raises(TypeError, match=r"primary_kwargs=\{'user_agent': …\}"):
        pairbus.PairedServiceBusClient.from_connection_strings(NOBODY, NOBODY, user_agent="orders/1.0")


def test_switch_that_turns_pairing_off_says_nothing_to_a_client_without_a_pair(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PAIRBUS_DISABLED", "1")
    client = pairbus.ServiceBusClient.from_connection_string(NOBODY)
    assert caplog.records == [] and repr(client) == "<ServiceBusClient 127.0.0.1:9 HEALTHY>"
    client.close()


def test_commands_of_a_pair_are_not_there() -> None:
    client = pairbus.ServiceBusClient.from_connection_string(NOBODY)
    for name in ("pair", "clear_pairing", "force_failover", "force_healthy", "fault", "options"):
        assert not hasattr(client, name), name
    client.close()


# ── the same application with one namespace and with two ──


async def use(client: Client, stage: Stage, queue: str) -> list[Any]:
    """Use all that an application may know of both clients; return what it sees."""
    due = datetime.now(UTC) + timedelta(hours=1)
    sender = client.sender(queue, client_identifier="orders-1")
    await sender.send(message(message_id="1"))
    await sender.send([message(message_id="2"), message(message_id="3")])
    batch = await sender.batch()
    batch.add_message(message(message_id="4"))
    await sender.send(batch)
    numbers = await sender.schedule(message(message_id="5"), due)
    await sender.cancel(numbers)
    await client.topic_sender(f"{queue}-news").send(message(message_id="6"))
    with pytest.raises(ReservedPropertyError):
        await sender.send(ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"}))
    stage.primary.put(f"{queue}-letters", encode(message("received")))
    receiver = client.client.get_queue_receiver(f"{queue}-letters")
    [received] = await client.call(receiver.receive_messages, 1, max_wait_time=10)
    await client.call(receiver.complete_message, received)
    await client.call(receiver.close)
    await sender.close()
    seen = [str(received), list(client.client.states().values()), client.client.counters["total"]]
    await client.close()
    ids = [id_of(payload) for payload in stage.primary.stored(queue)]
    return [*seen, ids, type(client.events[-1])]


async def test_application_of_one_namespace_runs_unchanged_with_a_pair(flavour: Flavour, stage: Stage) -> None:
    """To pair later, one line is changed: the one that makes the client."""
    one, two = await asyncio.gather(use(stage.single(flavour), stage, "one"), use(stage.client(flavour), stage, "two"))
    assert one == two
    assert ["1", "2", "3", "4"] in one


# ── sends ──


async def test_single_client_has_one_connection_and_no_background_tasks(stage: Stage, flavour: Flavour) -> None:
    client = stage.single(flavour)
    await asyncio.gather(*(client.sender(f"q-{number % 5}").send(message()) for number in range(50)))
    assert {step.connection for step in stage.primary.steps} == {1}
    assert sum(attaches(stage, f"q-{number}") for number in range(5)) == 5
    mine = client.client._life.engine if flavour == "aio" else client.client._life.thread._engine
    assert mine._background is None


async def test_send_to_a_namespace_that_is_away_raises_the_sdks_error_after_retries(
    stage: Stage, flavour: Flavour
) -> None:
    """Three attempts within a second, as a pair with nothing to fall back to makes them; the outage is told once."""
    client = stage.single(flavour)
    sender = client.sender(QUEUE)
    await sender.send(message())
    name = client.client.fully_qualified_namespace
    port = stage.primary.port
    await stage.primary.stop()
    assert type(await sender.error(message())) is ServiceBusConnectionError
    began = time.monotonic()
    error: Any = await sender.error(message())
    assert 0.4 < time.monotonic() - began < 2.0 * slowness()
    assert (error.outcome_unknown, error.may_be_in) == (False, ())
    assert type(error) is ServiceBusConnectionError
    assert client.state(QUEUE) is State.SUSPECT
    assert repr(client.client) == f"<ServiceBusClient {name} orders SUSPECT>"
    assert re.fullmatch(r"<ServiceBusSender orders SUSPECT for \d+\.\ds>", repr(sender.sender))
    await stage.primary.start(port)
    await sender.send(message())
    assert client.state(QUEUE) is State.HEALTHY
    [suspected], [recovered] = client.told(Suspected), client.told(Recovered)
    assert suspected.fails_over_in_s is None and "fails over" not in str(suspected)
    assert recovered.by == "a send"
    assert client.client.counters["total"] | {"sent": 2, "failed": 2} == client.client.counters["total"]


async def test_error_of_an_unanswered_send_names_the_namespace(stage: Stage, flavour: Flavour) -> None:
    """There is no primary, and no backlog queue, in the mind of somebody without a pair."""
    client = stage.single(flavour)
    stage.primary.on("transfer", LoseAnswer(), path=QUEUE)
    error: Any = await client.sender(QUEUE).error(message(), timeout=0.5)
    assert (error.outcome_unknown, error.may_be_in) == (True, ("the namespace",))
    assert "Unknown outcome: the namespace did not answer" in error.__notes__[0]
    assert type(error) is OperationTimeoutError


async def test_send_that_is_closed_under_way_names_the_namespace(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "PUMP_GRACE_S", 0.1)
    client = stage.single(flavour)
    stage.primary.on("transfer", LoseAnswer(), path=QUEUE)
    sending = asyncio.create_task(client.sender(QUEUE).error(message()))
    await until(lambda: stage.primary.received, "it is under way")
    stage.primary.on("transfer", Reject("amqp:internal-error"), path=QUEUE)
    await client.close()
    error: Any = await sending
    assert isinstance(error, ClientClosed) and error.may_be_in == ("the namespace",), repr(error)


async def test_failure_policy_of_the_application_is_followed(stage: Stage, flavour: Flavour) -> None:
    """A disabled entity is tried again for a moment, instead of raising at once."""
    client = stage.single(flavour, policy=FailurePolicy(REACTIONS | {Kind.DISABLED: Reaction.COUNT}))
    stage.primary.on("attach", Reject("com.microsoft:entity-disabled"), path=QUEUE, times=2)
    await client.sender(QUEUE).send(message())
    assert attaches(stage, QUEUE) == 3


# ── looking ──


async def test_ledger_and_control_socket_tell_of_one_namespace(stage: Stage, flavour: Flavour, tmp_path: Path) -> None:
    socket = tmp_path / "control"
    client = stage.single(flavour, ledger=tmp_path / "ledger", control_socket=str(socket))
    await client.sender(QUEUE).send(message())
    status, said = await asyncio.to_thread(ask, socket, "GET", "/", None, 10.0)
    assert status == 200 and isinstance(said, dict)
    name = client.client.fully_qualified_namespace
    assert (said["primary"], said["secondary"], said["paired"], said["queues"]) == (name, None, False, 0)
    assert [(entity["path"], entity["state"], entity["sent"]) for entity in said["entities"]] == [(QUEUE, "HEALTHY", 1)]
    forced, answer = await asyncio.to_thread(ask, socket, "POST", "/force-failover", {"all": True}, 10.0)
    assert forced == 409 and "is not paired" in str(answer)
    await client.close()
    rows = [row for row in read(tmp_path / "ledger") if row.event is None]
    assert [(row.kind, row.side, row.namespace, row.count) for row in rows] == [("send", "primary", name, 1)]


# ── the end ──


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(("pairbus", "ledger"))}


async def test_closed_client_refuses_calls_and_leaves_no_thread(stage: Stage, flavour: Flavour) -> None:
    gc.collect()
    before = ours()
    client = stage.single(flavour)
    sender = client.sender(QUEUE)
    await sender.send(message())
    name = client.client.fully_qualified_namespace
    await client.close()
    await client.close()
    assert type(await sender.error(message())) is ClientClosed
    assert repr(client.client) == f"<ServiceBusClient {name} closed>"
    assert repr(sender.sender) == "<ServiceBusSender orders closed>"
    assert [str(event) for event in client.told(Closed)] == [f"{name} closed"]
    await until(lambda: ours() <= before, "its threads have ended", 20.0)


async def test_forgotten_client_leaves_no_connection(stage: Stage, flavour: Flavour) -> None:
    client: Client | None = new_single(flavour, stage.primary.connection_string)
    assert client is not None
    await client.sender(QUEUE).send(message())
    client = None
    gc.collect()
    await until(lambda: not stage.primary.peers, "its connection is closed", 20.0)


async def test_client_of_the_sdk_that_somebody_closed_faults_the_client(stage: Stage, flavour: Flavour) -> None:
    client = stage.single(flavour)
    sender = client.sender(QUEUE)
    await sender.send(message())
    await client.call(client.client._primary.close)
    error = await sender.error(message())
    assert isinstance(error, PairedMessagingFactoryError) and "pair of" not in str(error)
    assert len(client.told(Faulted)) == 1


async def test_single_client_goes_on_in_the_next_event_loop(stage: Stage) -> None:
    client = stage.single("aio")
    sender = client.client.get_queue_sender(QUEUE)

    async def job() -> None:
        await sender.send_messages(ServiceBusMessage("x"))

    for _ in range(2):
        await asyncio.to_thread(asyncio.run, job())
    assert len(stage.primary.stored(QUEUE)) == 2
    await asyncio.to_thread(asyncio.run, client.client.close())


async def test_with_statement_starts_no_thread_and_closes(stage: Stage) -> None:
    """Nothing is paired when the block begins."""
    with pairbus.ServiceBusClient.from_connection_string(NOBODY) as client:
        assert client._life.thread is None
    async with pairbus.aio.ServiceBusClient.from_connection_string(NOBODY) as other:
        assert other._life.engine is None
    for ended in (client, other):
        with pytest.raises(ClientClosed):
            ended.get_queue_sender(QUEUE)


FORKING = """
import os, sys
from azure.servicebus import ServiceBusMessage
from pairbus import ServiceBusClient

client = ServiceBusClient.from_connection_string(sys.argv[1])
sender = client.get_queue_sender("orders")
sender.send_messages(ServiceBusMessage("x", message_id="before"), timeout=10)
if os.fork() == 0:
    sender.send_messages(ServiceBusMessage("x", message_id="child"), timeout=10)
    client.close()
    os._exit(0)
assert os.wait()[1] == 0
sender.send_messages(ServiceBusMessage("x", message_id="after"), timeout=10)
client.close()
"""


async def test_forked_child_sends_on_a_connection_of_its_own(stage: Stage) -> None:
    command = [sys.executable, *FORK_QUIETLY, "-c", FORKING, stage.primary.connection_string]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0 and errors == b"", errors.decode()
    assert [id_of(payload) for payload in stage.primary.stored(QUEUE)] == ["before", "child", "after"]
    assert [step.connection for step in stage.primary.steps if step.step == "transfer"] == [1, 2, 1]
