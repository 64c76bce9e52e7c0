"""The folder of a spool: who may read it, who owns it, forks and sudden deaths, and files that are not ours."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pairbus.errors import SpoolDamaged, SpoolError, SpoolForeign, SpoolFull, SpoolInUse, SpoolNewer, SpoolOfAnotherPair
from pairbus.spool import Spool, open_free, spools_in
from pairbus.spool.files import FILE_NAME, RESERVE_BYTES, look
from tests.spool.child_appender import GROUP
from tests.spool.entries import entries, entry, waiting

ROOT = Path(__file__).parent.parent.parent


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def in_child(work: Callable[[], bool]) -> bool:
    """Fork; what `work` says there."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# ── modes ──


def test_nobody_else_can_read_a_spool(tmp_path: Path) -> None:
    """Messages are the application's secrets: 0700 and 0600 whatever the umask says, for SQLite's own files too."""
    before = os.umask(0)
    try:
        spool = Spool(tmp_path / "deep" / "spool")
        spool.append([entry(1)])
    finally:
        os.umask(before)
    files = {path.name: mode(path) for path in spool.folder.iterdir()}
    assert mode(spool.folder) == 0o700
    assert files == dict.fromkeys(
        (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", "lock", "reserve", "commits"), 0o600
    )
    spool.close()


def test_a_folder_that_stood_open_is_closed(tmp_path: Path) -> None:
    """Made beforehand by an installer, or opened by a careless hand."""
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o755)
    Spool(folder).close()
    folder.chmod(0o755)
    (folder / FILE_NAME).chmod(0o644)
    Spool(folder).close()
    assert mode(folder) == 0o700 and mode(folder / FILE_NAME) == 0o600


# ── one owner ──


def test_a_second_owner_is_refused_and_told_which_folder(tmp_path: Path) -> None:
    """Two forwarders would send every message twice; the first one goes on undisturbed."""
    spool = Spool(tmp_path / "spool")
    with pytest.raises(SpoolInUse, match=rf"{spool.folder} is in use by another client \(process {os.getpid()}\)"):
        Spool(tmp_path / "spool")
    spool.append([entry(1)])
    spool.close()
    spool = Spool(tmp_path / "spool")
    assert waiting(spool) == [1]
    spool.close()


def test_processes_that_share_a_folder_have_spools_of_their_own_within_it(tmp_path: Path) -> None:
    """A process that comes later adopts the spool of a process that has ended."""
    first, second = open_free(tmp_path / "spool"), open_free(tmp_path / "spool")
    assert second.folder == first.folder / "1"
    second.append([entry(1)])
    second.close()
    third = open_free(tmp_path / "spool")
    assert waiting(third) == [1]
    assert spools_in(first.folder) == [first.folder, third.folder]
    first.close()
    third.close()


def test_spool_with_messages_is_opened_before_an_empty_one(tmp_path: Path) -> None:
    """The new process of an overlapping restart spools into `1`. If it dies, the next one finds two free spools."""
    old, new = open_free(tmp_path / "spool", pair="contoso"), open_free(tmp_path / "spool", pair="contoso")
    old.close()
    new.append([entry(1)])
    new.close()
    again = open_free(tmp_path / "spool", pair="Contoso")
    assert again.folder == new.folder and waiting(again) == [1]
    again.close()


def test_messages_that_no_process_forwards_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One client forwards one spool. A spool in use, of another pair, or with refused messages only needs nobody."""
    spools = [Spool(tmp_path / name, pair="litware" if name == "4" else "contoso") for name in ("", "1", "2", "3", "4")]
    for spool in spools:
        spool.append([entry(1)])
    [(number, _)] = spools[3].next_batch("orders", 1, 1)
    spools[3].refuse([(number, "too large")], refused_ms=1)
    for number in (0, 2, 3, 4):
        spools[number].close()
    before = {number: contents(tmp_path / number) for number in ("2", "3", "4")}
    with caplog.at_level(logging.WARNING, "pairbus.spool"):
        opened = open_free(tmp_path, pair="contoso")
    assert opened.folder == tmp_path
    [text] = [record.getMessage() for record in caplog.records]
    assert text.startswith(f"{tmp_path / '2'} holds messages") and f"`pairbus spool drain {tmp_path / '2'}`" in text
    assert {number: contents(tmp_path / number) for number in before} == before, "looking changes nothing"
    opened.close()
    spools[1].close()


def test_messages_in_the_log_of_a_killed_process_are_found(tmp_path: Path) -> None:
    """SQLite copies the messages into the file itself only when the next process has opened it."""
    Spool(tmp_path, pair="contoso").close()
    killed = Spool(tmp_path / "copied", pair="contoso")
    killed.append([entry(1)])
    shutil.copytree(killed.folder, tmp_path / "1")
    killed.close()
    shutil.rmtree(killed.folder)
    spool = open_free(tmp_path, pair="contoso")
    assert waiting(spool) == [1]
    spool.close()


def test_damaged_spool_beside_an_empty_one_keeps_no_client_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client has a spool, and a warning names each spool that cannot be opened."""
    Spool(tmp_path).close()
    for name, make in (("1", a_broken_tree), ("2", a_text), ("3", a_newer_spool)):
        (tmp_path / name).mkdir()
        make(tmp_path / name / FILE_NAME)
    with caplog.at_level(logging.WARNING, "pairbus.spool"):
        spool = open_free(tmp_path, pair="contoso")
    assert spool.folder == tmp_path
    texts = sorted(record.getMessage() for record in caplog.records)
    assert [text.split(" ", 1)[0] for text in texts] == [str(tmp_path / name / FILE_NAME) for name in ("1", "2", "3")]
    spool.close()


def test_a_spool_within_a_numbered_one_is_found(tmp_path: Path) -> None:
    """Messages in the inner spool were reported as stored, however the folder came there. A link leads elsewhere,
    or round in a circle.
    """
    folders = [tmp_path / name for name in ("", "1", "1/2", "2/1", "10")]
    for folder in folders:
        Spool(folder).close()
    (tmp_path / "1" / "3").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "4").write_text("no folder")
    assert spools_in(tmp_path) == folders


# ── one pair ──


def test_messages_of_another_pair_are_left_to_it(tmp_path: Path) -> None:
    """The messages would be sent to a namespace that they were never meant for. Refused messages count too."""
    first = open_free(tmp_path, pair="contoso")
    first.append(entries(range(2)))
    [(number, _), (other, _)] = first.next_batch("orders", 2, 1000)
    first.refuse([(number, "too large")], refused_ms=1)
    first.forwarded([other])
    first.close()
    with pytest.raises(SpoolOfAnotherPair, match=f"{tmp_path} holds messages of the pair contoso, not of litware"):
        Spool(tmp_path, pair="litware")
    other_pair, own = open_free(tmp_path, pair="litware"), open_free(tmp_path, pair="Contoso")
    assert other_pair.folder == tmp_path / "1" and own.folder == tmp_path and own.refused == 1
    other_pair.close()
    own.close()


def test_an_empty_spool_is_anybodys(tmp_path: Path) -> None:
    """An empty spool belongs to the next pair that opens it."""
    for pair in ("contoso", "litware"):
        spool = open_free(tmp_path, pair=pair)
        assert (spool.folder, spool.pair) == (tmp_path, pair)
        spool.append([entry(1)])
        spool.close()
        spool = Spool(tmp_path)
        assert spool.pair == pair
        spool.forwarded([number for number, _ in spool.next_batch("orders", 1, 1)])
        spool.close()


def test_a_spool_of_the_first_version_is_adopted_with_its_messages(tmp_path: Path) -> None:
    """An old spool does not say whose it is: the first client that opens it has it from then on."""
    spool = Spool(tmp_path)
    spool.append([entry(1)])
    spool.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("DROP TABLE pair")
        connection.execute("PRAGMA user_version = 1")
    pair, [standing] = look(tmp_path)
    assert pair is None and standing.waiting == 1
    spool = open_free(tmp_path, pair="contoso")
    assert waiting(spool) == [1]
    spool.append([entry(2)])
    spool.close()
    spool = Spool(tmp_path, pair="contoso")
    assert waiting(spool) == [1, 2]
    spool.close()


def test_a_client_that_only_looks_whose_spool_it_is_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pairs start at one moment: if each passed over what the other looks at, nobody would forward it."""
    Spool(tmp_path).close()
    looking = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_EX)
    monkeypatch.setattr("pairbus.host.locks.time.sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
    spool = open_free(tmp_path, pair="contoso")
    assert spool.folder == tmp_path
    spool.close()
    os.close(looking)


# ── forks ──


def test_forked_child_loses_the_spool_and_can_open_another(tmp_path: Path) -> None:
    """SQLite must not be used across a fork: the child is told, and the parent's file is not touched by it."""
    spool = Spool(tmp_path / "spool")
    spool.append([entry(1)])

    def child() -> bool:
        with pytest.raises(SpoolError, match="not open in this process"):
            spool.append([entry(2)])
        own = open_free(spool.folder)
        own.append([entry(3)])
        own.close()
        spool.close()
        return spool.is_inherited and not spool.has("orders") and own.folder == spool.folder / "1"

    assert in_child(child)
    assert not spool.is_inherited
    spool.append([entry(4)])
    assert waiting(spool) == [1, 4]
    spool.close()
    left = Spool(spool.folder / "1")
    assert waiting(left) == [3]
    left.close()


def test_a_child_that_lives_on_does_not_keep_the_lock_alive(tmp_path: Path) -> None:
    """A lock is shared by everyone who inherits its descriptor: an orphan's spool could not be drained."""
    ready, ready_end = os.pipe()
    done, done_end = os.pipe()
    owner = os.fork()
    if owner == 0:
        Spool(tmp_path / "spool").append([entry(1)])  # the owner dies while its spool is open
        if os.fork() == 0:
            os.close(done_end)
            os.write(ready_end, b"x")
            os.read(done, 1)
        os._exit(0)
    os.waitpid(owner, 0)
    assert os.read(ready, 1) == b"x"
    spool = Spool(tmp_path / "spool")
    assert waiting(spool) == [1]
    spool.close()
    os.close(done_end)


def test_closing_frees_the_folder_whoever_else_has_the_descriptor(tmp_path: Path) -> None:
    """A child that was forked by other means than Python's does not hear of it, and keeps what it inherited."""
    spool = Spool(tmp_path / "spool")
    inherited = os.dup(spool._lock._fd)
    spool.close()
    Spool(tmp_path / "spool").close()
    os.close(inherited)


def test_a_fork_while_another_thread_appends_leaves_both_alive(tmp_path: Path) -> None:
    """The child may find any lock held by a thread that does not exist there."""
    spool = Spool(tmp_path / "spool")
    stop = threading.Event()

    def append_all_the_time() -> None:
        while not stop.is_set():
            spool.append([entry(0)])

    thread = threading.Thread(target=append_all_the_time)
    thread.start()
    try:
        for _ in range(10):
            assert in_child(lambda: spool.is_inherited and not spool.has("orders") and spool.waiting == 0)
    finally:
        stop.set()
        thread.join(10)
    assert len(waiting(spool)) == spool.waiting
    spool.close()


# ── sudden death ──


@pytest.mark.parametrize("answers", [1, 25, 80])
def test_what_was_reported_as_stored_survives_a_kill(tmp_path: Path, answers: int) -> None:
    """Killed in the middle of anything, a process has lost nothing that it reported, nor left half a group."""
    folder, told = tmp_path / "spool", defaultdict[str, list[int]](list)
    for first in (0, 1_000_000):
        command = [sys.executable, "-m", "tests.spool.child_appender", str(folder), str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(answers)]
            child.send_signal(signal.SIGKILL)
            lines += child.stdout.readlines()
        for line in lines:
            name, group = line.split()
            told[f"path-{name}"].append(int(group))
    spool = Spool(folder)
    for path, groups in told.items():
        found = waiting(spool, path)
        assert found == sorted(found), "out of order"
        assert len(found) % GROUP == 0, "half a group"
        assert {group * GROUP + place for group in groups for place in range(GROUP)} <= set(found)
    assert spool.refused == 0
    spool.close()


def test_acknowledged_messages_that_a_damaged_log_has_lost_are_missed(tmp_path: Path) -> None:
    """SQLite forgets the end of a damaged write-ahead log without a word: then we say it, once, and go on."""
    original, copy = Spool(tmp_path / "spool"), tmp_path / "copy"
    original.append([entry(1)])
    original.append([entry(2)])
    shutil.copytree(original.folder, copy)  # like the folder of a killed process, with its write-ahead log
    original.close()
    log = copy / f"{FILE_NAME}-wal"
    log.write_bytes(log.read_bytes()[:-100])
    spool = Spool(copy)
    [sentence] = spool.damage
    assert "the last 1 commits are missing" in sentence
    assert waiting(spool) == [1]
    spool.append([entry(3)])
    spool.close()
    spool = Spool(copy)
    assert spool.damage == [] and waiting(spool) == [1, 3]
    spool.close()


def test_spool_of_release_0_3_tells_lost_commits(tmp_path: Path) -> None:
    """Release 0.3 noted the number of the last commit as a text, and made the file before there was a commit."""
    spool = Spool(tmp_path)
    spool.append([entry(1)])
    spool.close()
    for noted, sentences in ((b"", 0), (b"%020d" % 1, 0), (b"%020d" % 3, 1)):
        (tmp_path / "commits").write_bytes(noted)
        spool = Spool(tmp_path)
        assert len(spool.damage) == sentences and waiting(spool) == [1]
        spool.close()
    assert "the last 2 commits are missing" in spool.damage[0]


def test_damaged_number_of_commits_is_told(tmp_path: Path) -> None:
    """A loss cannot be noticed without it. The messages are whole, and the next commit mends it."""
    spool = Spool(tmp_path)
    spool.append([entry(1)])
    spool.close()
    noted = bytearray((tmp_path / "commits").read_bytes())
    noted[10] ^= 1
    (tmp_path / "commits").write_bytes(noted)
    spool = Spool(tmp_path)
    [sentence] = spool.damage
    assert sentence == f"{tmp_path / 'commits'} is damaged; if commits were lost with it, it cannot be noticed."
    spool.append([entry(2)])
    spool.close()
    spool = Spool(tmp_path)
    assert spool.damage == [] and waiting(spool) == [1, 2]
    spool.close()


# ── files that are not ours, newer, or damaged ──


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def a_foreign_database(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE waiting (number INTEGER)")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()


def a_text(file: Path) -> None:
    file.write_text("dear diary " * 100)


def an_empty_file(file: Path) -> None:
    file.touch()


def another_file(file: Path) -> None:
    (file.parent / "report.txt").write_text("quarterly")


def a_newer_spool(file: Path) -> None:
    Spool(file.parent).close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 3")


def a_broken_tree(file: Path) -> None:
    spool = Spool(file.parent)
    spool.append(entries(range(200), size=500))
    spool.close()
    content = bytearray(file.read_bytes())
    page = content.index(entry(100, size=500).payload) // 4096 * 4096
    content[page : page + 100] = bytes(100)
    file.write_bytes(content)


def a_missing_table(file: Path) -> None:
    Spool(file.parent).close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE refused")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (a_foreign_database, SpoolForeign),
        (a_text, SpoolForeign),
        (an_empty_file, SpoolForeign),
        (another_file, SpoolForeign),
        (a_newer_spool, SpoolNewer),
        (a_broken_tree, SpoolDamaged),
        (a_missing_table, SpoolDamaged),
    ],
)
def test_what_cannot_be_used_is_named_and_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], kind: type[SpoolError]
) -> None:
    """A wrong folder must not cost anybody their data. Asked again, it says the same: nothing stays locked."""
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    make(folder / FILE_NAME)
    before = contents(folder)
    for _ in range(2):
        with pytest.raises(kind, match=str(folder)) as caught:
            Spool(folder)
        assert type(caught.value) is kind
        after = contents(folder)
        assert {name: after[name] for name in before} == before
        if kind is not SpoolDamaged:
            assert after == before


def test_a_damaged_spool_can_be_copied_and_a_new_folder_used(tmp_path: Path) -> None:
    """The error advises to copy the spool, so that must be possible while nothing is locked."""
    folder = tmp_path / "spool"
    a_broken_tree_in = folder / FILE_NAME
    folder.mkdir()
    a_broken_tree(a_broken_tree_in)
    with pytest.raises(SpoolDamaged, match="keep a copy of the folder"):
        Spool(folder)
    shutil.move(folder, tmp_path / "kept")
    spool = Spool(folder)
    spool.append([entry(1)])
    spool.close()


def test_a_folder_that_cannot_be_made_is_an_error_of_the_spool(tmp_path: Path) -> None:
    """Not a bare OSError: the client tells its user which folder it was."""
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match="cannot be opened: Not a directory"):
        Spool(tmp_path / "file" / "spool")
    with pytest.raises(SpoolError, match="cannot be opened: File name too long"):
        open_free(tmp_path / ("x" * 300))
    with pytest.raises(SpoolError, match="There is no spool in"):
        look(tmp_path)


# ── a full disk ──


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_stores_nothing_and_loses_nothing(small_disk: Path) -> None:
    """The same answer as at the spool's own limit. What was stored before can be forwarded, and that makes room."""
    spool = Spool(small_disk / "spool")
    stored = []
    try:
        with pytest.raises(SpoolFull, match="safe"):
            for number in range(1000):
                spool.append([entry(number, size=50_000)])
                stored.append(number)
        assert len(stored) > 10 and spool.waiting == len(stored)
        spool.close()
        (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free))
        spool = Spool(small_disk / "spool")
        assert waiting(spool) == stored
        while stored:
            [(number, _)] = spool.next_batch("orders", 1, 1)
            spool.forwarded([number])
            assert waiting(spool) == stored[1:]
            stored.pop(0)
        spool.append([entry(5000, size=50_000)])
        assert waiting(spool) == [5000]
        assert (spool.folder / "reserve").stat().st_size == RESERVE_BYTES, (
            "the reserve is filled again for the next full disk"
        )
    finally:
        spool.close()


def fill(disk: Path) -> None:
    """Write a file until the disk has no block left."""
    with (disk / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space left"):
        while True:
            ballast.write(bytes(4096))


def test_spool_opens_on_a_full_disk_by_means_of_its_reserve(small_disk: Path) -> None:
    """SQLite needs room for its own files when a spool is opened, and a clean end has removed them. Without the spool
    the client sends nothing, and its messages cannot be drained.
    """
    spool = Spool(small_disk / "spool")
    spool.append(entries(range(3)))
    spool.close()
    fill(small_disk)
    spool = open_free(small_disk / "spool", pair="contoso")
    try:
        assert waiting(spool) == [0, 1, 2]
        spool.forwarded([number for number, _ in spool.next_batch("orders", 3, 1 << 20)])
        assert spool.waiting == 0
        (small_disk / "ballast").unlink()
    finally:
        spool.close()
    Spool(small_disk / "spool").close()
    assert (small_disk / "spool" / "reserve").stat().st_size == RESERVE_BYTES, "held again when there is room"


def test_new_file_of_a_spool_fits_the_reserve(small_disk: Path) -> None:
    """A user may move the file away from a full disk, and leave the reserve behind."""
    Spool(small_disk / "spool").close()
    (small_disk / "spool" / FILE_NAME).unlink()
    fill(small_disk)
    spool = Spool(small_disk / "spool")
    try:
        spool.append([entry(1)])
        assert waiting(spool) == [1]
    finally:
        spool.close()
