"""Options as users of other connectors know them: aliases, hints, and explanations of names without a meaning."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pairbus.errors import ConfigError
from pairbus.spark.option_table import ALIASES, BY_NAME, ELSEWHERE
from pairbus.spark.option_values import OptionValues
from pairbus.spark.options import Options
from pairbus.spark.source.formats import ServiceBusDataSource
from tests.spark.test_options import PAGE, environment, parse

__all__ = ["environment"]  # a fixture that every test of this file uses

STREAM = {"use": "stream", "entity": "o", "stagingLocation": "/mnt/stage"}
PEEK = {"use": "stream", "entity": "o", "mode": "peek"}


def test_the_aliases_on_the_page_are_those_of_the_code() -> None:
    """The page has the names of both tables, and every name leads to an option."""
    section = PAGE.split("### Names of other connectors\n")[1].split("\n## ")[0]
    shown = re.findall(r"^\| (`.*?`) \| `([\w.]+)` \| (same|near) \|$", section, re.MULTILINE)
    found = {(name, ours, how) for names, ours, how in shown for name in re.findall(r"`([\w.]+)`", names)}
    expected = {(name, ours, "same") for name, ours in ALIASES.items()}
    assert found == expected | {(name, ours, "near") for name, ours in ELSEWHERE.items()}
    assert {ours.lower() for _, ours, _ in found} <= set(BY_NAME)


def test_aliases_mean_the_same() -> None:
    """Names without case; said twice, they must agree."""
    stream = {"use": "stream", "stagingLocation": "/mnt/stage"}
    options = parse(**stream, queue="orders", MINPARTITIONS="7", maxMessagesPerTrigger="5", maxBytesPerTrigger="9")
    assert (options.entity, options.partitions) == ("orders", 7)
    assert (options.max_messages_per_batch, options.max_bytes_per_batch) == (5, 9)
    assert parse(**STREAM, maxOffsetsPerTrigger="3", maxMessagesPerBatch="3").max_messages_per_batch == 3
    with pytest.raises(ConfigError, match="option partitions is given twice, as minPartitions and as partitions"):
        parse(entity="o", minPartitions="3", partitions="4")


@pytest.mark.parametrize(
    ("use", "given", "entities"),
    [
        ("read", {"topic": "news", "subscription": "all"}, ("news/Subscriptions/all",)),
        ("stream", {"topic": "news", "subscription": "all", "mode": "peek"}, ("news/Subscriptions/all",)),
        ("write", {"topic": "news"}, ("news",)),
        ("read", {"entity": "a, b ,/c/,a"}, ("a", "b", "c")),
        ("read", {"entities": "a,b"}, ("a", "b")),
        ("read", {"entityPattern": "orders-*"}, ()),
    ],
)
def test_entities_are_named_in_several_ways(use: str, given: dict[str, str], entities: tuple[str, ...]) -> None:
    """A topic with its subscription, a list, a pattern; a topic alone is written to."""
    options = parse(use, **given)
    assert options.entities == entities
    assert options.entity == (entities[0] if len(entities) == 1 else None)
    assert options.reads_several is (len(entities) != 1)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topic": "news"}, "option topic: a topic itself cannot be read; give option subscription too"),
        ({"subscription": "all"}, "option subscription needs option topic"),
        ({"topic": "t", "subscription": "s", "entity": "o"}, "exclude each other"),
        ({"use": "write", "entity": "a,b"}, "option entity names 2 entities"),
        ({"use": "write", "entityPattern": "a*"}, "option entityPattern is for reading"),
        ({"entity": "o", "provider": "servicebus"}, "use CREATE TEMPORARY VIEW"),
        ({}, "use CREATE TEMPORARY VIEW"),
        ({"subscribe": "o"}, "option subscribe is not known to format servicebus; here it is entity"),
        ({"eventhubs.connectionString": "x"}, "here it is connectionString"),
        ({"entity": "o", "propertiesAs": "json"}, "option propertiesAs must be typed or string, not 'json'"),
        (STREAM | {"startingOffsets": "latest"}, "begins with the first message of the queue, always; mode=peek"),
        (STREAM | {"startingSequenceNumber": "5"}, "begins with the first message of the queue, always; mode=peek"),
        (STREAM | {"failOnDataLoss": "false"}, "option failOnDataLoss=false: a stream that receives loses nothing"),
        (STREAM | {"mode": "drop"}, "option mode must be receive or peek, not 'drop'"),
        (STREAM | {"maxBytesPerTrigger": "0"}, "option maxBytesPerBatch must be a whole number in 1 … 2⁶³-1, not '0'"),
        (PEEK | {"failOnDataLoss": "true"}, "option failOnDataLoss=true cannot be promised with mode=peek"),
        (PEEK | {"startingOffsets": "now"}, "option startingOffsets must be earliest, latest, or JSON"),
        (PEEK | {"startingOffsets": '{"o": -1}'}, "option startingOffsets must be earliest, latest, or JSON"),
        (PEEK | {"startingOffsets": '{"p": 1}'}, "option startingOffsets names 'p', which option entity does not"),
        (PEEK | {"startingOffsets": "latest", "startingSequenceNumber": "1"}, "exclude each other"),
        (PEEK | {"sessions": "true"}, "mode=peek does not need it"),
        (PEEK | {"stagingLocation": "/mnt/stage"}, "option stagingLocation: a stream with mode=peek removes nothing"),
        (PEEK | {"storageCredential": "default"}, "option storageCredential: a stream with mode=peek removes nothing"),
        (PEEK | {"stageRetentionSeconds": "60"}, "option stageRetentionSeconds: a stream with mode=peek removes"),
        ({"entity": "o", "session": "a", "subQueue": "deadletter"}, "a dead-letter queue has no sessions"),
        (STREAM | {"session": "a", "sessions": "false"}, "option sessions says that there are none"),
        ({"entity": "o", "session": "a" * 129}, "at most 128 characters, not 129"),
    ],
)
def test_what_means_nothing_here_is_explained(given: dict[str, str], text: str) -> None:
    """The error comes before any connection, and says what is right."""
    with pytest.raises(ConfigError, match=re.escape(text)):
        parse(**given)


READ, STREAMS, WRITE = "batch reads (spark.read)", "streams that are read (spark.readStream)", "writing (write and"


@pytest.mark.parametrize(
    ("use", "name", "value", "text"),
    [
        ("stream", "fromSequenceNumber", "5000", f"is for {READ}, not for {STREAMS}"),
        ("stream", "toSequenceNumber", "10", f"is for {READ}, not for {STREAMS}"),
        ("read", "startingSequenceNumber", "5", f"is for {STREAMS}, not for {READ}"),
        ("read", "mode", "receive", f"is for {STREAMS}, not for {READ}"),
        ("read", "maxMessagesPerTrigger", "10", f"is for {STREAMS}, not for {READ}"),
        ("write", "session", "a", f"is for reading (spark.read and spark.readStream), not for {WRITE}"),
        ("write", "subQueue", "deadletter", "is for reading"),
        ("write", "subscription", "all", "is for reading"),
    ],
)
def test_an_option_of_another_use_is_refused_and_not_ignored(use: str, name: str, value: str, text: str) -> None:
    """A stream that ignored `fromSequenceNumber` would remove messages that the user wanted to leave."""
    with pytest.raises(ConfigError, match=re.escape(f"option {name} {text}")):
        parse(use, **{"entity": "o", name: value})


def test_an_option_is_accepted_where_the_table_says_so() -> None:
    """The column of the page is the rule, for every option and every use."""
    for option in BY_NAME.values():
        for use in ("read", "stream", "write"):
            try:
                OptionValues({option.name: "1"}, use)
            except ConfigError as error:
                assert f"option {option.name} is for" in str(error)
                is_accepted = False
            else:
                is_accepted = True
            assert is_accepted is (option.used_by == "all" or use in option.used_by), (option.name, use)


def test_what_is_so_anyway_may_be_said() -> None:
    """Options of a query for another connector may stay where they promise no more than there is."""
    assert parse(**STREAM, startingOffsets="earliest", failOnDataLoss="true").removes
    assert parse(**PEEK, startingOffsets="latest", failOnDataLoss="false").start_of("o") is None


def test_a_table_without_options_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error explains it also where the usual variable has no connection string."""
    monkeypatch.delenv("PAIRBUS_CONNECTION_STRING")
    with pytest.raises(ConfigError, match=r"no connection string in .* If this is a table: .* WITH \(…\)"):
        parse()
    ServiceBusDataSource({"provider": "servicebus", "owner": "me"}).schema()


def test_create_table_is_refused_when_it_is_created() -> None:
    """Spark asks for the schema then, with options that only tables have, and drops the user's afterwards."""
    with pytest.raises(ConfigError, match="use CREATE TEMPORARY VIEW"):
        ServiceBusDataSource({"entity": "o", "option.entity": "o", "provider": "servicebus", "owner": "me"}).schema()


def test_properties_can_be_plain_text() -> None:
    """The schema says so, before options are checked."""
    typed, plain = (ServiceBusDataSource({"propertiesAs": kind}).schema() for kind in ("typed", "String"))
    assert "`application_properties` map<string,struct<type:string,value:string>>" in typed
    assert "`application_properties` map<string,string>" in plain and "`annotations` map<string,string>" in plain


class _Tokens:
    def __init__(self, name: str) -> None:
        self.name = name

    def get_token(self, *scopes: str) -> None:
        """Never called here."""


def test_a_service_credential_of_databricks_gives_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that only Databricks clusters have gives tokens; elsewhere the error says what to give instead."""
    given = {"entity": "o", "namespace": "contoso.servicebus.windows.net", "databricks.serviceCredential": "bus cred-1"}
    with pytest.raises(
        ConfigError, match=r"option databricks.serviceCredential=bus cred-1: only .* credential=default"
    ):
        Options.parse(given, "read")
    with pytest.raises(ConfigError, match=r"credential and databricks.serviceCredential exclude each other"):
        Options.parse(given | {"credential": "default"}, "read")
    module = ModuleType("databricks.service_credentials")
    module.getServiceCredentialsProvider = _Tokens  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "databricks", ModuleType("databricks"))
    monkeypatch.setitem(sys.modules, "databricks.service_credentials", module)
    credential = Options.parse(given, "read").secret.token_credential()
    assert isinstance(credential, _Tokens) and credential.name == "bus cred-1"


def test_one_of_several_entities_has_a_location_of_its_own() -> None:
    """Below the common one, by path; the name survives slashes, case and an object store's address."""
    options = parse("stream", entity="a,t/Subscriptions/s", stagingLocation="abfss://c@a.dfs.core.windows.net/x/")
    locations = [options.for_entity(entity).staging_location or "" for entity in options.entities]
    assert all(one.startswith("abfss://c@a.dfs.core.windows.net/x/") for one in locations)
    assert len(set(locations)) == 2
    assert Path(locations[1]).name.startswith("t-subscriptions-s-")
