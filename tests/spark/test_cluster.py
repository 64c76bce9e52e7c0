"""The syphon on a standalone cluster: a master and two workers, as processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.cluster import Cluster
from tests.spark.syphon_world import syphon_world
from tests.spark.test_secrets import held, key_of

RUN_S = 300
QUEUES = 4
EACH = 1500
ENTITIES = ("orders", "payments", "audit")

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.deep]


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks at the processes of a cluster through /proc")
def test_a_cluster_drains_the_backlog_and_no_file_of_it_has_a_key(tmp_path: Path) -> None:
    """All messages come home once, by the work of both executors; nothing is left running.

    The secret of one side is a file, that of the other a variable that driver and workers have: the two ways in which
    executors can get one. Event logs have what the pages of Spark show, and the logs what its processes say.
    """
    with syphon_world(tmp_path, queues=QUEUES, orders={}, payments={}, audit={}) as world:
        for queue in range(QUEUES):
            world.divert(EACH, *ENTITIES, queue=queue)
        secondary = {"FABRIKAM_OF_TEST": world.broker.connection_string("fabrikam")}
        with Cluster(tmp_path / "cluster", workers=2, environment=secondary) as cluster:
            options = {
                "--engine": "spark",
                "--master": cluster.master,
                "--journal": str(world.location),
                "--primary": world.secret_file("contoso"),
                "--secondary": "env:FABRIKAM_OF_TEST",
                "--primary-name": "contoso",
                "--backlog-queue-count": str(QUEUES),
            }
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pairbus",
                    "syphon",
                    "--once",
                    *(word for pair in options.items() for word in pair),
                ],
                env={**os.environ, **secondary, **cluster.driver_environment},
                capture_output=True,
                text=True,
                timeout=RUN_S,
                check=False,
            )
            said = done.stdout + done.stderr
            assert done.returncode == 0, said
            assert f"{QUEUES * EACH}" in said.replace(",", "").replace(" ", ""), said
            assert cluster.processes_at_work() == []
            assert cluster.executors_that_worked_for_a_stream() == {"0", "1"}
        assert world.check(*ENTITIES) == 0
        assert len(world.journaled()) == QUEUES * EACH
        key = key_of(secondary["FABRIKAM_OF_TEST"])
        assert key not in said
        assert held(tmp_path / "cluster", key) == []
        assert held(world.location, key) == []
