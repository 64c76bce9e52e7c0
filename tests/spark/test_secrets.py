"""One rule for secrets: Spark knows where they stand, and only processes that connect read them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pairbus.errors import ConfigError
from pairbus.spark import syphon
from pairbus.spark.connections import Borrowed, Secret, run
from pairbus.spark.features import is_remote
from pairbus.spark.options import Options
from pairbus.spark.sink.writers import send_rows
from pairbus.transport import Endpoint
from tests.brokers import BrokerProcess
from tests.scripted import ScriptedThread
from tests.spark.conftest import BROKER_PLACE
from tests.spark.queues import bodies_in, place_of, put, text_message
from tests.spark.stream_query import start
from tests.spark.stream_world import Stream
from tests.spark.syphon_world import BACKLOG, syphon_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOST = "contoso.servicebus.windows.net"
MADE_BY = "tests.spark.test_secrets:FakeCredential"
JWT = "eyJ0eXAiOiJKV1QifQ.e30.c2lnbmF0dXJl"


class FakeCredential:
    """Credential like those of azure-identity: it is only asked for tokens."""

    scopes: list[str]

    def __init__(self) -> None:
        self.scopes = []

    def get_token(self, *scopes: str, **_: Any) -> SimpleNamespace:
        self.scopes += scopes
        return SimpleNamespace(token=JWT, expires_on=4_000_000_000)


class AsyncCredential:
    async def get_token(self, *scopes: str) -> None:
        raise AssertionError("not to be asked")


def no_credential() -> str:
    return "not a credential"


# ── a secret that is missing ──


def test_a_task_on_a_host_without_the_secret_touches_no_message(
    broker: BrokerProcess, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has it, this executor does not: the error names option, place and host, and says no more."""
    stream = Stream(broker, queue_name, tmp_path / "staging")
    stream.send("a")
    [partition, *_] = stream.begin()
    monkeypatch.delenv(place_of(broker.connection_string()).removeprefix("env:"))
    with pytest.raises(
        ConfigError, match=r"option connectionString: no connection string in env:\w+ on host .* not set"
    ):
        stream.task(partition)
    place_of(broker.connection_string())
    assert bodies_in(broker, queue_name) == [b"a"]
    assert stream.batch() == [b"a"]


def test_a_sink_without_the_secret_sends_nothing(
    broker: BrokerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIRBUS_TEST_GONE", broker.connection_string())
    options = Options.parse({"connectionString": "env:PAIRBUS_TEST_GONE", "entity": queue_name}, "write")
    monkeypatch.delenv("PAIRBUS_TEST_GONE")
    with pytest.raises(ConfigError, match="option connectionString: no connection string in env:PAIRBUS_TEST_GONE on"):
        send_rows(iter([pa.RecordBatch.from_pydict({"body": [b"x"]})]), options, 0, "id")
    assert bodies_in(broker, queue_name) == []


def test_the_syphon_names_the_side_whose_secret_is_missing(tmp_path: Path) -> None:
    """The error comes before Spark is used."""
    with pytest.raises(ConfigError, match="primary: no connection string in env:NOT_SET on host"):
        syphon(None, primary="env:NOT_SET", secondary="env:NOT_SET", journal=tmp_path)  # type: ignore[arg-type]


# ── what can be seen of it ──


def held(folder: Path, key: str) -> list[Path]:
    """Files in which the key stands."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files, f"{folder} has no files to look at"
    return [path for path in files if key.encode() in path.read_bytes()]


def key_of(connection_string: str) -> str:
    return connection_string.split("SharedAccessKey=")[1].split(";", maxsplit=1)[0]


@pytest.mark.spark
def test_plans_checkpoints_and_stages_do_not_have_the_key(
    spark: SparkSession, broker: BrokerProcess, queue_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark can only show where the key stands."""
    key = key_of(broker.connection_string())
    put(broker, queue_name, [text_message("m")])
    frame = spark.read.format("servicebus").option("connectionString", BROKER_PLACE).load(queue_name)
    assert frame.count() == 1
    frame.explain("extended")
    query = start(spark, queue_name, tmp_path, once=True)
    assert query.awaitTermination(120)
    query.explain(True)
    shown = capsys.readouterr().out
    if not is_remote(spark):
        shown += json.dumps(dict(spark.sparkContext.getConf().getAll()))
    shown += "".join(str(progress) for progress in query.recentProgress)
    assert "Physical Plan" in shown and key not in shown
    assert held(tmp_path, key) == []


@pytest.mark.spark
def test_the_journal_of_a_syphon_does_not_have_the_key(spark: SparkSession, tmp_path: Path) -> None:
    """Reports and checkpoint, where Spark keeps the options of a query, do not have the key either."""
    with syphon_world(tmp_path, queues=1, orders={}) as world:
        world.divert(3, "orders")
        drain = syphon(
            spark,
            primary=world.secret_file("contoso"),
            secondary=world.secret_file("fabrikam"),
            journal=world.location,
            queues=[f"{BACKLOG}/0"],
            once=True,
        )
        assert drain.wait(120) and drain.left == 0
        assert world.check("orders") == 0
        assert held(world.location, key_of(world.broker.connection_string("contoso"))) == []


# ── token credentials ──


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedThread]:
    """An endpoint that takes every token, at the address of a namespace. Only TLS is left out."""
    with ScriptedThread() as endpoint:
        plain = Endpoint.parse(endpoint.connection_string)
        monkeypatch.setattr(
            "pairbus.spark.connections.Endpoint",
            lambda host, port, transport: Endpoint(plain.host, plain.port, tls=False, hostname=host),
        )
        yield endpoint


def test_credential_is_made_where_it_is_used(plain: ScriptedThread) -> None:
    """Options name the maker and the host; the token goes to the namespace as a JWT for the entity."""
    options = Options.parse({"namespace": HOST, "credential": MADE_BY, "entity": "orders"}, "write")
    assert send_rows(iter([pa.RecordBatch.from_pydict({"body": [b"x"]})]), options, 0, "id").messages == 1
    assert plain.tokens[-1] == (f"sb://{HOST}/orders", "jwt", JWT)
    assert len(plain.stored("orders")) == 1
    made = options.secret.token_credential()
    assert isinstance(made, FakeCredential) and made.scopes[0] == "https://servicebus.azure.net//.default"


def test_the_syphon_borrows_connections_with_a_credential(plain: ScriptedThread) -> None:
    async def send() -> None:
        async with Borrowed(Secret.parse(HOST, "primary", MADE_BY), None) as carrier:
            await (await carrier.sender("payments")).send(text_message("m"))

    run(send())
    assert plain.tokens[-1] == (f"sb://{HOST}/payments", "jwt", JWT)


@pytest.mark.parametrize(("transport", "port"), [("tcp", 5671), ("websocket", 443)])
def test_a_namespace_is_reached_over_tls(transport: Any, port: int) -> None:
    """A token for everything that its owner may do is not for the open network."""
    options = Options.parse(
        {"namespace": HOST, "credential": MADE_BY, "entity": "orders", "transport": transport}, "read"
    )
    endpoint = options.borrowed().new_carrier().endpoint
    assert (endpoint.host, endpoint.port, endpoint.tls, endpoint.key) == (HOST, port, True, None)
    assert endpoint.audience("orders") == f"sb://{HOST}/orders"


def test_default_is_the_credential_of_azure_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is imported where it is needed: other users need not have it."""
    monkeypatch.setitem(sys.modules, "azure.identity", SimpleNamespace(DefaultAzureCredential=FakeCredential))
    secret = Secret.parse(HOST, "option credential", "default")
    assert isinstance(secret.token_credential(), FakeCredential)


@pytest.fixture(autouse=True)
def made_anew() -> Iterator[None]:
    """Credentials are kept for the life of a process; tests are not."""
    from pairbus.transport.tokens.named_credential import made_credential

    made_credential.cache_clear()
    yield
    made_credential.cache_clear()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"namespace": HOST}, "options namespace and credential go together"),
        ({"credential": "default"}, "options namespace and credential go together"),
        ({"namespace": HOST, "credential": MADE_BY, "connectionString": "env:X"}, "exclude each other"),
        ({"namespace": HOST, "credential": "managed"}, "must be 'default' or 'MODULE:CALLABLE', not 'managed'"),
        ({"namespace": "sb://h/x", "credential": "default"}, "option credential: 'sb://h/x' is not the host"),
        ({"namespace": "Endpoint=sb://h", "credential": "default"}, "give the host of the namespace"),
        ({"namespace": HOST, "credential": "default"}, "credential default on host .*pip install azure-identity"),
        ({"namespace": HOST, "credential": "no_such_module:make"}, "credential no_such_module:make on host"),
        ({"namespace": HOST, "credential": "tests.spark.test_secrets:nobody"}, "has no attribute 'nobody'"),
        ({"namespace": HOST, "credential": "tests.spark.test_secrets:AsyncCredential"}, "get_token that is not async"),
        ({"namespace": HOST, "credential": "tests.spark.test_secrets:no_credential"}, "made a str"),
    ],
)
def test_what_is_wrong_with_a_credential_is_said(
    given: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes while the query is planned."""
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(ConfigError, match=says):
        Options.parse({"entity": "orders"} | given, "read")
