"""Files outlive the release that wrote them: samples of every release are read, and newer formats are refused."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessageState
from azure.servicebus.aio import ServiceBusClient
from tools.write_samples import ENTITY, MAJORS, SAMPLES

from pairbus.amqp.message import DATA, sections
from pairbus.backlog.envelope import Home, Spoiled, unwrap
from pairbus.broker import Broker, NamespaceOptions
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.errors import ConfigError, LedgerNewer, PairbusError, SpoolNewer, StoreNewer
from pairbus.ledger import read
from pairbus.spark.staging.log import Staging
from pairbus.spark.staging.stage_book import StageBook
from pairbus.spark.staging.stage_file import identity_of, read_payloads
from pairbus.spark.syphon_job.journal import JournalRow, Location
from pairbus.spark.syphon_job.journal_rows import ROW_DDL, find
from pairbus.spool import Spool

ROOT = Path(__file__).parent.parent
RELEASES = sorted(path.name for path in SAMPLES.iterdir())
NEWEST = RELEASES[-1]


def expected(release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SAMPLES / release / "expected.json").read_text())
    return found


def unpack(release: str, name: str, to: Path) -> Path:
    folder = to / release / name
    folder.mkdir(parents=True)
    with tarfile.open(SAMPLES / release / f"{name}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return folder


def body_of(payload: bytes) -> bytes:
    [(value_at, end)] = [(row[2], row[3]) for row in sections(payload) if row[0] == DATA]
    return payload[value_at + (2 if payload[value_at] == 0xA0 else 5) : end]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


# ── every release is read ──


def test_a_backlog_message_of_any_release_goes_home(release: str, tmp_path: Path) -> None:
    """A message may have waited in its backlog queue while client and syphon were upgraded."""
    folder = unpack(release, "envelope", tmp_path)
    for name, own in expected(release)["envelope"].items():
        home = unwrap((folder / f"{name}.amqp").read_bytes())
        assert isinstance(home, Home)
        assert (home.path, home.message_id, body_of(home.payload)) == ("orders", name, f"body of {name}".encode())
        said = {field: getattr(home, field) for field in ("session_id", "ttl_ms", "scheduled_ms")}
        assert {field: value for field, value in said.items() if value is not None} == own
        assert b"x-ms-" not in home.payload and "ünï".encode() in home.payload


def test_a_spool_of_any_release_is_drained(release: str, tmp_path: Path) -> None:
    """A message in it was acknowledged, and its process may start again as a later release."""
    folder = unpack(release, "spool", tmp_path)
    spool = Spool(folder)
    assert spool.paths() == ["orders"]
    batch = spool.next_batch("orders", 10, 1 << 20)
    assert [entry.message_id for _, entry in batch] == expected(release)["spool"]
    assert [body_of(entry.payload) for _, entry in batch] == [
        f"body of {name}".encode() for name in expected(release)["spool"]
    ]
    spool.forwarded([number for number, _ in batch])
    spool.close()
    again = Spool(folder)
    assert (again.waiting, again.refused) == (0, 0)
    again.close()


async def test_a_store_of_any_release_opens_with_all_messages(release: str, tmp_path: Path) -> None:
    """The genuine SDK finds every message in its state, and the states of sessions."""
    known = expected(release)["store"]
    folder = unpack(release, "store", tmp_path)
    (tmp_path / "data").mkdir()
    folder.rename(tmp_path / "data" / "contoso")
    async with (
        Broker([NamespaceOptions("contoso")], data=tmp_path / "data") as broker,
        ServiceBusClient.from_connection_string(broker.connection_string("contoso")) as client,
    ):
        async with client.get_queue_receiver("orders") as receiver:
            found = await receiver.peek_messages(10)
        ids = {state: [one.message_id for one in found if one.state == state] for state in ServiceBusMessageState}
        # The sample was written with a message sent home by a paired client behind the others.
        assert ids[ServiceBusMessageState.ACTIVE] == [*known["orders"]["active"], "home-1"]
        assert ids[ServiceBusMessageState.DEFERRED] == known["orders"]["deferred"]
        assert ids[ServiceBusMessageState.SCHEDULED] == known["orders"]["scheduled"]
        assert all(b"".join(one.body) == f"body of {one.message_id}".encode() for one in found)
        async with client.get_queue_receiver("orders", sub_queue="deadletter") as receiver:
            [dead] = await receiver.peek_messages(10)
        assert (dead.message_id, dead.dead_letter_reason) == (known["orders"]["dead"][0], "Sample")
        for session, state in known.get("session_state", {}).items():
            async with client.get_queue_receiver("tickets", session_id=session) as receiver:
                assert await receiver.session.get_state() == state.encode()
                assert [one.message_id for one in await receiver.peek_messages(10)] == known["tickets"]["active"]


def test_a_ledger_of_any_release_is_read(release: str, tmp_path: Path) -> None:
    """Reports are made of ledgers of months, from clients of several releases."""
    rows = read(unpack(release, "ledger", tmp_path))
    found = list(rows)
    assert rows.skipped == 0
    diverted = [row.message_id for row in found if row.kind == "diverted"]
    spooled = [row for row in found if row.event == "Spooled"]
    assert [*diverted] == expected(release)["ledger"]["diverted"][: len(diverted)] and len(diverted) >= 3
    assert sum((row.details or {}).get("count", 1) for row in spooled) == len(expected(release)["spool"])
    assert any(row.kind == "send" and row.cause == "application" and row.count == 1 for row in found)


def test_a_journal_of_any_release_has_the_fields_of_today(release: str, tmp_path: Path) -> None:
    """Spark reads its lines by name: one that was renamed would be null without an error."""
    place = Location(unpack(release, "journal", tmp_path))
    lines = [json.loads(line) for name in find(place).names for line in _lines(place, name)]
    names = [field.split()[0] for field in ROW_DDL.split(",")]
    assert [sorted(line) for line in lines] == [sorted(names)] * len(lines)
    assert [JournalRow(**{name: line[name] for name in JournalRow._fields})._asdict() for line in lines] == expected(
        release
    )["journal"]


def _lines(place: Location, name: str) -> list[bytes]:
    return (place.storage.get(f"journal/{name}") or b"").splitlines()


def test_a_staging_location_of_any_release_goes_on(release: str, tmp_path: Path) -> None:
    """A stream that is upgraded has batches that Spark has committed, and sealed ones that Spark has not."""
    known = expected(release)["staging"]
    staging = Staging(str(unpack(release, "staging", tmp_path)))
    book = StageBook(staging, ENTITY, 3_600.0)
    assert (book.committed, book.received(2)) == (known["committed"], len(known["sealed"]["2"]))
    book.check_offset(known["committed"], None)  # the offset of that release, which names no location
    assert book.plan(2, [1]).shares == (10,), "the plan is the one that was made then"
    for entry in staging.entries_after(0):
        if entry.kind == "seal":
            payloads = [one for batch in read_payloads(staging.storage, entry.stage, entry.without) for one in batch]
            ids = [identity[2] for one in payloads if (identity := identity_of(one)) is not None]
            assert ids == known["sealed"][str(entry.batch)]


# ── a newer major version is refused, and nothing is changed ──


def _raise_sqlite(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[60:64] = (int.from_bytes(data[60:64], "big") + 1).to_bytes(4, "big")  # user_version
        (folder / name).write_bytes(bytes(data))

    return change


def _raise_text(pattern: str, before: bytes, after: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        paths = list(folder.glob(pattern))
        assert paths and all(before in path.read_bytes() for path in paths)
        for path in paths:
            path.write_bytes(path.read_bytes().replace(before, after))

    return change


REFUSALS: dict[str, tuple[Callable[[Path], None], Callable[[Path], object], type[PairbusError], str]] = {
    "spool": (_raise_sqlite("spool.db"), Spool, SpoolNewer, r"spool version 3, this one knows 2"),
    "store": (
        _raise_sqlite("messages.db"),
        lambda folder: SqliteStore(folder).recover(),
        StoreNewer,
        r"store version 3, this one knows 2",
    ),
    "ledger": (
        _raise_text("*.jsonl", b'"schema":1', b'"schema":2'),
        lambda folder: list(read(folder)),
        LedgerNewer,
        r"line 1: a row has schema 2.*upgrade",
    ),
    "staging": (
        _raise_text("owners/*", b'"version":1', b'"version":2'),
        lambda folder: StageBook(Staging(str(folder)), ENTITY, 3_600.0),
        ConfigError,
        r"option stagingLocation: .*staging version 2, this one knows 1.*Upgrade Pairbus",
    ),
}
"Format → how its version is raised, how it is opened, and the refusal. Journals: tests/spark/test_syphon_spark.py."


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_newer_major_version_is_refused_and_left_as_it_is(name: str, tmp_path: Path) -> None:
    """An older release that wrote into it, or took it for damaged, would lose what was acknowledged."""
    change, opened, kind, text = REFUSALS[name]
    folder = unpack(NEWEST, name, tmp_path)
    change(folder)
    before = digests(folder)
    with pytest.raises(kind, match=text):
        opened(folder)
    assert digests(folder) == before


def test_a_backlog_message_that_is_not_understood_is_dead_lettered_whole(tmp_path: Path) -> None:
    """An envelope says no version. An alias that has another type gives a reason, and the message stays as it came."""
    payload = (unpack(NEWEST, "envelope", tmp_path) / "away-2.amqp").read_bytes()
    key = b"\xa1\x0fx-ms-timetolive"
    at = payload.index(key) + len(key)
    assert payload[at] == 0x81, "the value is a long"
    changed = payload[:at] + b"\x82" + payload[at + 1 :]  # a double
    spoiled = unwrap(changed)
    assert isinstance(spoiled, Spoiled) and spoiled.message_id == "away-2"
    assert spoiled.reason == "InvalidAlias" and "x-ms-timetolive must be" in spoiled.description


# ── the samples and the page keep up with the code ──


def test_the_newest_samples_are_of_the_formats_of_today() -> None:
    """A change that raises a version brings samples: `python -m tools.write_samples RELEASE`."""
    assert expected(NEWEST)["majors"] == MAJORS


def test_every_release_has_samples_and_so_has_the_next_one() -> None:
    """Samples begin with 0.2: 0.1 had neither client nor Spark."""
    sections_of_changelog = re.findall(r"(?m)^## (\d+\.\d+)\.\d+", (ROOT / "CHANGELOG.md").read_text())
    assert sorted(set(sections_of_changelog) - {"0.1"}) == RELEASES


def test_the_page_of_formats_has_the_versions_of_today() -> None:
    """The table of docs/formats.md names the version of each format as major.minor."""
    table = dict(re.findall(r"(?m)^\| (\w+) \| (\d+)\.\d+ \|", (ROOT / "docs" / "formats.md").read_text()))
    assert {name: int(table[name]) for name in MAJORS} == MAJORS
