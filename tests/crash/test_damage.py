"""A broker on a data folder that was damaged: it serves what is intact and says what is missing, or it says why not.

What every single bit does to the store's files is tested in `tests/store`; here the whole broker is held to the rule.
`PAIRBUS_DAMAGES` makes `make deep` longer, `PAIRBUS_SEED` repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash.folders import STORE, Ending, Image, make_images, refusal_on, serve_and_drain
from tests.history.events import Place

pytestmark = pytest.mark.slow

DAMAGES = int(os.environ.get("PAIRBUS_DAMAGES", "3"))  # damages of each kind for each file
SEED = os.environ.get("PAIRBUS_SEED") or "damage"
AT_ONCE = 2
FILES = [
    ("stopped", "messages.db"),
    ("stopped", "commits"),
    ("killed", "messages.db"),
    ("killed", "messages.db-wal"),
    ("killed", "messages.db-shm"),
    ("killed", "commits"),
    ("killed", "lock"),
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    stopped, killed = make_images(tmp_path_factory.mktemp("stopped"), tmp_path_factory.mktemp("killed"))
    return {"stopped": stopped, "killed": killed}


def judge(ending: Ending, image: Image, what: str) -> str:
    """Hold the ending to the rule: "refused", "announced" or "whole"."""
    assert "Traceback" not in ending.said, f"{what}: {ending.said}"
    if ending.code != 0:
        lines = ending.said.splitlines()
        assert (ending.code, len(lines)) == (1, 1), f"{what}: exit code {ending.code}, {ending.said}"
        assert STORE in lines[0] and ("salvage" in lines[0] or "choose another" in lines[0].lower()), lines
        return "refused"
    ids = [event.id for event in ending.drained]
    assert len(set(ids)) == len(ids), f"{what}: a message came twice"
    strange = [event.id for event in ending.drained if image.held.get(event.id, ("", ""))[0] != event.digest]
    assert strange == [], f"{what}: served, but never sent like that"
    places = {event.id: event.place for event in ending.drained}
    if places == {message_id: place for message_id, (_, place) in image.held.items()}:
        return "announced" if ending.said else "whole"
    assert STORE in ending.said, f"{what}: {len(image.held) - len(ids)} messages are missing without a word"
    assert "damaged" in ending.said or "missing" in ending.said, f"{what}: {ending.said}"
    return "announced"


def damage(path: Path, kind: str, source: random.Random, number: int) -> str:
    """Hit the header, the tail, or anywhere; in words."""
    size = path.stat().st_size
    if size == 0:
        return f"{path.name} is empty"
    low, high = [(0, min(size, 100)), (max(size - 100, 0), size), (0, size)][min(number, 2)]
    at = source.randrange(low, high)
    if kind == "cut":
        os.truncate(path, at)
        return f"{path.name} of {size} bytes cut to {at}"
    bit = source.randrange(8)
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"{path.name} of {size} bytes: bit {bit} of byte {at} flipped"


@pytest.mark.parametrize("damages", [1, pytest.param(DAMAGES, marks=pytest.mark.deep)], ids=["header", "anywhere"])
@pytest.mark.parametrize("kind", ["cut", "flip"])
async def test_damaged_files_are_refused_or_what_is_missing_is_announced(
    images: dict[str, Image], tmp_path: Path, kind: str, damages: int
) -> None:
    """Never a damaged byte, never a loss without a word."""
    outcomes: dict[tuple[str, str], list[str]] = {}
    turns = asyncio.Semaphore(AT_ONCE)

    async def attempt(state: str, name: str, number: int) -> None:
        image = images[state]
        async with turns:
            folder = await asyncio.to_thread(image.copy, tmp_path / f"{state} {name} {number}")
            what = damage(folder / STORE / name, kind, random.Random(f"{SEED} {state} {name} {number}"), number)
            outcome = judge(await serve_and_drain(folder), image, f"{state}: {what}")
            shutil.rmtree(folder)
        outcomes.setdefault((state, name), []).append(outcome)

    async with asyncio.TaskGroup() as group:
        for state, name in FILES:
            for number in range(damages):
                group.create_task(attempt(state, name, number))
    print(kind, outcomes)
    for state, name in FILES:
        if name in ("messages.db-shm", "lock"):  # the broker makes these files again at every start
            assert set(outcomes[state, name]) == {"whole"}
        elif damages > 1 or (state, name) != ("killed", "messages.db"):  # the log has nearly all of its pages too
            assert set(outcomes[state, name]) & {"refused", "announced"}, "the damage did not reach anything"


async def test_an_intact_folder_is_served_whole_without_a_word(images: dict[str, Image], tmp_path: Path) -> None:
    """The yardstick of the test above, for both ways of ending."""
    for name, image in images.items():
        ending = await serve_and_drain(image.copy(tmp_path / name))
        assert judge(ending, image, name) == "whole"
        assert set(Place) == {event.place for event in ending.drained}


async def test_a_removed_log_is_announced(images: dict[str, Image], tmp_path: Path) -> None:
    """The log holds nearly everything here; without it the database is intact and old."""
    folder = images["killed"].copy(tmp_path / "data")
    (folder / STORE / "messages.db-wal").unlink()
    ending = await serve_and_drain(folder)
    assert judge(ending, images["killed"], "no log") == "announced"
    assert "acknowledged commits are missing" in ending.said


async def test_a_removed_database_is_no_new_folder(images: dict[str, Image], tmp_path: Path) -> None:
    """Starting empty would be the quietest loss of all."""
    folder = images["stopped"].copy(tmp_path / "data")
    (folder / STORE / "messages.db").unlink()
    assert "the file is missing, although this folder was in use" in await refusal_on(folder)


async def test_a_foreign_file_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    """A wrong folder on the command line must not cost anyone a file."""
    path = tmp_path / "data" / STORE / "messages.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE treasure (a)")
    before = path.read_bytes()
    line = await refusal_on(tmp_path / "data")
    assert f"{path} is not a Pairbus store" in line and "Choose another data folder" in line
    assert path.read_bytes() == before


async def test_a_newer_store_is_refused_with_both_versions(images: dict[str, Image], tmp_path: Path) -> None:
    """Going back to an older release must not destroy what the newer one wrote."""
    folder = images["stopped"].copy(tmp_path / "data")
    path = folder / STORE / "messages.db"
    with closing(sqlite3.connect(path)) as store:
        store.execute("PRAGMA user_version = 7")
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    before = path.read_bytes()
    line = await refusal_on(folder)
    assert "store version 7" in line and str(path) in line and "Upgrade" in line
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["ca.pem", "server.pem", "server.key"])
async def test_a_damaged_certificate_costs_no_message(images: dict[str, Image], tmp_path: Path, name: str) -> None:
    """The broker makes the certificate anew, or its refusal names the file and what to do with it."""
    folder = images["stopped"].copy(tmp_path / "data")
    path = folder / name
    os.truncate(path, path.stat().st_size // 2)
    ending = await serve_and_drain(folder)
    assert "Traceback" not in ending.said, ending.said
    if ending.code == 0:
        assert len(ending.drained) == len(images["stopped"].held)
    else:
        assert (ending.code, len(ending.said.splitlines())) == (1, 1), ending
        assert str(path) in ending.said, ending.said
