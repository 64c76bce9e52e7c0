"""The options of the format: what is wrong is said by name, and what is secret is never said."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from pairbus.errors import ConfigError
from pairbus.spark.options import LONG_MAX, OPTIONS, Options

PAGE = (Path(__file__).parents[2] / "docs" / "spark-options.md").read_text(encoding="utf-8")
KEY = "c2VjcmV0LWtleQ=="
TEXT = f"Endpoint=sb://contoso.servicebus.windows.net;SharedAccessKeyName=root;SharedAccessKey={KEY}"
ENVIRONMENT = {
    "PAIRBUS_CONNECTION_STRING": TEXT,
    "OTHER": TEXT.replace("contoso", "fabrikam"),
    "FOR_ONE": TEXT + ";EntityPath=payments",
    "WRONG": "x",
    "EMPTY": " ",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def parse(use: str = "read", **given: str) -> Options:
    assert use in ("read", "stream", "write")
    return Options.parse(given, use)  # type: ignore[arg-type]


def test_the_options_on_the_page_are_those_of_the_code() -> None:
    """Every row, every cell."""
    section = PAGE.split("## Options\n")[1].split("\n## ")[0]
    shown = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*?) \| (.*?) \| (.*) \|$", section, re.MULTILINE)
    written = {None: "", str(LONG_MAX): "2⁶³-1"}
    assert shown == [
        (one.name, written.get(one.default, f"`{one.default}`"), one.accepts, one.used_by, one.meaning)
        for one in OPTIONS
    ]


def test_names_are_compared_without_case() -> None:
    """Spark hands them over in lower case."""
    assert parse(ENTITY="orders", fromsequencenumber="7").from_sequence_number == 7


def test_what_load_and_save_are_given_is_the_entity() -> None:
    """Spark calls it path; said twice, it must be the same."""
    assert parse(path="orders").entity == "orders"
    assert parse(path="orders", entity="orders").entity == "orders"
    with pytest.raises(ConfigError, match="option entity is given twice"):
        parse(path="orders", entity="payments")


def test_options_of_sparks_own_are_left_alone() -> None:
    """A streaming sink is handed these too."""
    assert parse("write", checkpointLocation="/tmp/x", queryName="q", entity="orders").entity == "orders"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"entitiy": "orders"}, "option entitiy is not known to format servicebus; did you mean entity?"),
        ({"zzz": "1"}, "option zzz is not known to format servicebus"),
        ({}, "option entity is required"),
        ({"entity": "orders/$deadletterqueue"}, "give option subQueue=deadletter"),
        ({"entity": "o", "partitions": "0"}, "option partitions must be a whole number in 1 … 1000, not '0'"),
        ({"entity": "o", "partitions": "two"}, "option partitions must be a whole number in 1 … 1000, not 'two'"),
        ({"entity": "o", "timeoutSeconds": "nan"}, "option timeoutSeconds must be a number in 1 … 600, not 'nan'"),
        ({"entity": "o", "fromSequenceNumber": "-1"}, "option fromSequenceNumber must be"),
        ({"entity": "o", "subQueue": "dead"}, "option subQueue must be deadletter, not 'dead'"),
        ({"entity": "o", "includeRaw": "yes"}, "option includeRaw must be true or false, not 'yes'"),
        ({"entity": "o", "transport": "udp"}, "option transport must be tcp or websocket, not 'udp'"),
        ({"entity": "o", "connectionString": "env:NONE"}, "option connectionString: no connection string in env:NONE"),
        ({"entity": "o", "connectionString": "env:EMPTY"}, "in env:EMPTY on host"),
        ({"entity": "o", "connectionString": "@/nowhere/at/all"}, "no connection string in @/nowhere/at/all on host"),
        ({"entity": "o", "connectionString": "env:WRONG"}, "option connectionString: connection string: a part has no"),
        ({"entity": "o", "connectionString": TEXT}, "option connectionString: Spark shows options in its plans"),
        (
            {"entity": "o", "connectionString": "env:FOR_ONE"},
            "option entity: the connection string is for EntityPath 'payments', not for 'o'",
        ),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], text: str) -> None:
    """The option, what it was, and what would be right: before anything is connected."""
    with pytest.raises(ConfigError, match=re.escape(text)) as caught:
        parse(**given)
    assert KEY not in str(caught.value)


def test_a_stream_needs_a_place_for_its_stages() -> None:
    """Only a place that every host sees makes a replay possible; only on a local master one can be assumed."""
    with pytest.raises(ConfigError, match="option stagingLocation is required"):
        parse("stream", entity="orders")
    assert parse("stream", entity="orders", stagingLocation="/mnt/stage").staging_location == "/mnt/stage"


def test_writing_needs_no_entity() -> None:
    """The rows may name theirs."""
    assert parse("write").entity is None


def test_the_entity_path_of_the_connection_string_is_the_entity() -> None:
    """A key that opens one entity says which one."""
    assert parse(connectionString="env:FOR_ONE").entity == "payments"


def test_the_connection_string_comes_from_a_variable_or_a_file(tmp_path: Path) -> None:
    """Without the option, from the variable that the commands use too."""
    file = tmp_path / "secret"
    file.write_text(TEXT.replace("contoso", "file") + "\n")
    given: tuple[dict[str, str], ...] = ({}, {"connectionString": "env:OTHER"}, {"connectionString": f"@{file}"})
    assert [parse(entity="o", **one).host.split(".")[0] for one in given] == ["contoso", "fabrikam", "file"]


def test_what_travels_to_the_executors_has_no_key() -> None:
    """Spark writes what it sends to the disks of its hosts: each of them reads the place for itself."""
    options = parse(entity="orders")
    assert KEY not in repr(options)
    assert KEY.encode() not in pickle.dumps(options)
    assert pickle.loads(pickle.dumps(options)).borrowed().new_carrier().endpoint.key == KEY


def test_the_dead_letter_queue_is_read_beside_its_entity() -> None:
    """The entity stays what it is, so that rows can be written back to it."""
    options = parse(entity="/orders/", subQueue="DeadLetter")
    assert (options.entity, options.read_path) == ("orders", "orders/$DeadLetterQueue")


def test_file_of_a_secret_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Editors on Windows write one: a file that works for a command works for Spark too."""
    file = tmp_path / "broker.txt"
    file.write_text(TEXT, encoding="utf-8-sig")
    assert parse(entity="o", connectionString=f"@{file}").secret.read() == TEXT
