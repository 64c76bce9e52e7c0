"""The syphon on a standalone cluster: a master and two workers, as processes of this machine."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pyspark
import pytest

from pairbus.spark import find_java
from pairbus.spark.storage.opening import open_storage
from tests.pages import blocks_of
from tests.spark import submitted
from tests.spark.cluster import Cluster
from tests.spark.syphon_world import SyphonWorld, syphon_world
from tests.spark.test_secrets import held, key_of
from tests.storage.azurites import Azurite

RUN_S = 600  # 90 s on two cores with a load of 10
QUEUES = 4
EACH = 1500
ENTITIES = ("orders", "payments", "audit")
VARIABLE = "FABRIKAM_OF_TEST"
"Holds the connection string of the secondary: in the environment of the workers, and of the driver."

pytestmark = [
    *(pytest.mark.spark, pytest.mark.slow, pytest.mark.deep),
    pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks at the processes of a cluster in /proc"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("standalone")


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[SyphonWorld]:
    with syphon_world(folder, queues=QUEUES, orders={}, payments={}, audit={}) as world:
        yield world


@pytest.fixture(scope="module")
def cluster(folder: Path, world: SyphonWorld) -> Iterator[Cluster]:
    known = {VARIABLE: world.broker.connection_string("fabrikam")}
    with Cluster(folder / "cluster", workers=2, environment=known) as cluster:
        yield cluster


def divert(world: SyphonWorld, each: int) -> None:
    world.sent.clear()
    for queue in range(QUEUES):
        world.divert(each, *ENTITIES, queue=queue)


def run(world: SyphonWorld, cluster: Cluster, command: list[str], folder: Path, **environment: str) -> str:
    """Run a driver, which must end well and leave nothing behind in the workers; return its output."""
    secret = {VARIABLE: world.broker.connection_string("fabrikam")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **secret, **cluster.driver_environment, **environment},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert cluster.processes_at_work() == []
    return said


def test_command_drains_the_backlog_without_a_key_on_disk(world: SyphonWorld, cluster: Cluster, folder: Path) -> None:
    """All messages come home once, by the work of both executors; nothing is left running.

    The command is the one of docs/spark-clusters.md for a standalone cluster.

    The secret of one side is a file, that of the other a variable that driver and workers have: the two ways in which
    executors can get one. Event logs have what the pages of Spark show, and the logs what its processes say.
    """
    divert(world, EACH)
    [block] = blocks_of("test_command_drains_the_backlog_without_a_key_on_disk")
    line = block.text
    for placeholder, here in (
        ("spark://master:7077", cluster.master),
        ("/mnt/pairbus", str(world.location)),
        ("@/run/secrets/contoso", world.secret_file("contoso")),
        ("FABRIKAM", VARIABLE),
    ):
        line = line.replace(placeholder, here)
    more = ["--primary-name", "contoso", "--backlog-queue-count", str(QUEUES)]
    said = run(world, cluster, [sys.executable, "-m", *shlex.split(line), *more], folder)
    assert cluster.executors_that_worked_for_a_stream() == {"0", "1"}
    assert world.check(*ENTITIES) == 0
    assert len(world.journaled()) == QUEUES * EACH
    key = key_of(world.broker.connection_string("fabrikam"))
    assert key not in said
    assert held(folder / "cluster", key) == []
    assert held(world.location, key) == []


def packed_environment(path: Path) -> None:
    """Pack as venv-pack does, but with links to the packages of this environment: they are on every host here."""
    home = Path(sys.prefix)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(home / "pyvenv.cfg", "pyvenv.cfg")
        for name, target in (("bin/python", Path(sys.executable).resolve()), ("lib", home / "lib")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, str(target)
            archive.addfile(link)


def test_spark_submit_brings_the_environment_to_the_executors(
    world: SyphonWorld, cluster: Cluster, tmp_path: Path
) -> None:
    """The environment goes by --archives; the archive is also unpacked at the driver, whose Python looks there too."""
    divert(world, 50)
    packed_environment(tmp_path / "pairbus.tar.gz")
    with tarfile.open(tmp_path / "pairbus.tar.gz") as archive:
        archive.extractall(tmp_path / "environment", filter="fully_trusted")
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", cluster.master]
    application = [submitted.__file__, str(world.location.with_name("submitted")), world.secret_file("contoso")]
    said = run(
        world,
        cluster,
        [*submit, "--archives", "pairbus.tar.gz#environment", *application, f"env:{VARIABLE}", str(QUEUES)],
        tmp_path,
        PYSPARK_PYTHON="./environment/bin/python",
        PYSPARK_DRIVER_PYTHON="./environment/bin/python",
        JAVA_HOME=str(find_java().home),
    )
    assert f"moved={QUEUES * 50} left=0" in said, said
    assert world.check(*ENTITIES) == 0


@pytest.mark.node
def test_a_journal_on_blob_has_every_move_although_an_executor_is_killed(
    world: SyphonWorld, cluster: Cluster, folder: Path, azurite: Azurite
) -> None:
    """SIGKILL in the middle of the work: nothing is lost, and the table of moves has every message once."""
    divert(world, EACH)
    (folder / "storage.txt").write_text(azurite.connection_string)
    journal = azurite.new_container(f"t-{uuid.uuid4().hex[:12]}") + "/journal"
    options = {
        "--engine": "spark",
        "--master": cluster.master,
        "--journal": journal,
        "--storage-credential": f"@{folder / 'storage.txt'}",
        "--tables": str(folder / "tables"),
        "--checkpoint": str(folder / "checkpoint-of-blob"),
        "--primary": world.secret_file("contoso"),
        "--secondary": world.secret_file("fabrikam"),
        "--primary-name": "contoso",
        "--backlog-queue-count": str(QUEUES),
        "--max-messages-per-second": "400",
    }
    words = [word for pair in options.items() for word in pair]
    storage = open_storage(journal, options["--storage-credential"])
    command = [sys.executable, "-m", "pairbus", "syphon", "--once", *words]
    environment = {**os.environ, **cluster.driver_environment}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.STDOUT) as driver:
        try:
            deadline = time.monotonic() + RUN_S
            while not storage.list("journal/"):
                assert driver.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            assert cluster.kill_executor(0), "the executor was not running"
            assert driver.wait(RUN_S) == 0
        finally:
            driver.kill()
    moves = pyarrow.parquet.read_table(folder / "tables" / "moves", columns=["message_id"]).column(0).to_pylist()
    assert sorted(moves) == sorted(world.sent), "the table has each message once"
    world.check_found(world.found(*ENTITIES, expects=True), duplicates_max=len(world.sent) // 4)
