"""Azure Blob when it does not answer, answers too late, or says no."""

from __future__ import annotations

import pickle
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pairbus.errors import ConfigError, StorageError
from pairbus.spark.storage import LargeStorage
from pairbus.spark.storage.opening import check_access, open_storage
from tests.storage.azurites import Azurite, Door
from tests.storage.fixtures import PLACE

pytestmark = pytest.mark.node


@pytest.fixture
def container(azurite: Azurite) -> str:
    return azurite.new_container(f"t-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def door(azurite: Azurite) -> Iterator[Door]:
    with Door(azurite.port) as door:
        yield door


def through(door: Door, azurite: Azurite, container: str, patience_s: float = 20.0) -> LargeStorage:
    return open_storage(container.replace(str(azurite.port), str(door.port)), PLACE, patience_s=patience_s)


def test_a_lost_answer_is_not_taken_for_somebody_elses_win(azurite: Azurite, container: str, door: Door) -> None:
    """The object was made and nobody said so: asked again, the service says that it is there already."""
    storage = through(door, azurite, container)
    assert not storage.exists("a")
    door.lose_answers(1)
    assert storage.put_new("a", b"ours")
    assert door.lost == 1 and storage.get("a") == b"ours"
    storage.put("b", b"theirs")
    door.lose_answers(1)
    assert not storage.put_new("b", b"ours")
    assert storage.get("b") == b"theirs"


def test_with_lost_answers_a_race_still_has_one_winner(azurite: Azurite, container: str, door: Door) -> None:
    """Every seventh answer is lost: also those to calls that ask what became of an earlier one."""
    storage = through(door, azurite, container)
    door.lose_every = 7
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda call: storage.put_new(f"{call % 20}", b"%d" % call), range(160)))
    door.lose_every = 0
    assert door.lost > 10
    for key in range(20):
        winners = [call for call in range(key, 160, 20) if won[call]]
        assert len(winners) == 1 and storage.get(f"{key}") == b"%d" % winners[0]


def test_a_service_that_is_away_is_waited_for(azurite: Azurite, container: str, door: Door) -> None:
    """Calls under way break, new ones are refused; all of them succeed when it is back."""
    storage = through(door, azurite, container)
    storage.put("a", b"1")
    with ThreadPoolExecutor(4) as pool:
        door.shut()
        calls = [pool.submit(storage.put_new, f"k{number}", b"%d" % number) for number in range(4)]
        time.sleep(0.5)
        assert not any(call.done() for call in calls)
        door.open()
        assert [call.result(30) for call in calls] == [True] * 4
    assert storage.get("a") == b"1"


def test_after_the_patience_the_error_says_where(azurite: Azurite, container: str, door: Door) -> None:
    """The error is an OSError too: code that knows what a bad disk means knows what this means."""
    storage = through(door, azurite, container, patience_s=0.3)
    door.shut()
    with pytest.raises(StorageError, match="journal/x") as told:
        storage.put_new("journal/x", b"1")
    assert isinstance(told.value, OSError) and container.rpartition("/")[2] in str(told.value)


def test_a_container_that_is_not_there_is_named(azurite: Azurite) -> None:
    """Whichever call comes first."""
    storage = open_storage(f"{azurite.url()}/nobody-made-it/x", PLACE)
    for call in (storage.get, storage.exists, storage.list, storage.delete, storage.open):
        with pytest.raises(ConfigError, match="devstoreaccount1 has no container 'nobody-made-it'"):
            call("log/")
    with pytest.raises(ConfigError, match="has no container"):
        storage.put_new("a", b"1")


def test_a_wrong_key_is_told_with_the_place_of_the_key(container: str, tmp_path: Path) -> None:
    """The key itself is in no error."""
    file = tmp_path / "storage.txt"
    file.write_text("DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=d3Jvbmc=;")
    storage = open_storage(container, f"@{file}", option="storageCredential")
    with pytest.raises(ConfigError, match=r"storageCredential .*storage.txt.* is refused") as told:
        check_access(storage)
    assert "d3Jvbmc=" not in str(told.value)


@pytest.mark.parametrize("rights", ["rl", "rwl", "rwd", "wdl"])
def test_a_token_that_lacks_a_right_is_refused_by_the_check(
    rights: str, azurite: Azurite, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right that is needed in an hour must show now."""
    monkeypatch.setenv("PAIRBUS_SAS", azurite.sas(rights))
    with pytest.raises(ConfigError, match="lacks a right"):
        check_access(open_storage(container, "env:PAIRBUS_SAS"))


def test_a_token_with_all_rights_opens_it(azurite: Azurite, container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is copied from a page, with the question mark; what travels to tasks has none of it."""
    monkeypatch.setenv("PAIRBUS_STORAGE", "?" + azurite.sas("rwdlac"))
    storage = open_storage(container)
    check_access(storage)
    assert b"sig=" not in pickle.dumps(storage)


def test_door_passes_again_when_the_service_has_been_away() -> None:
    """A campaign stops the service behind the door, and everything goes on when it is back."""
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = int(first.getsockname()[1])
    with Door(port) as door:
        with socket.create_connection(("127.0.0.1", door.port)) as client:
            assert client.recv(1) == b"", "nobody is behind the door"
        with (
            socket.create_server(("127.0.0.1", port)) as second,
            socket.create_connection(("127.0.0.1", door.port)) as client,
            second.accept()[0] as server,
        ):
            server.sendall(b"x")
            assert client.recv(1) == b"x"
