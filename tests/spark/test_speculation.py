"""`spark.speculation`: a slow task may run twice at once. What that would send twice is refused, the rest is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.queues import bodies_in, put, text_message

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.classic]

RUN_S = 240.0


def test_sink_refuses_speculation_and_the_source_reads_once(
    broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """A task learns the setting from Spark, also where it was set for a whole cluster."""
    source, target = make_queue(), make_queue()
    (tmp_path / "broker.txt").write_text(broker.connection_string())
    sent = [b"%02d" % number for number in range(20)]
    put(broker, source, [text_message(body.decode()) for body in sent])
    words = [f"@{tmp_path / 'broker.txt'}", source, target, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.speculating", *words],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    failures = json.loads(done.stdout.splitlines()[-1])
    assert ["spark.speculation must be false" in failure for failure in failures] == [True, True], failures
    assert bodies_in(broker, target) == []
    read = pyarrow.parquet.read_table(tmp_path / "out", columns=["body"]).column("body").to_pylist()
    assert sorted(map(bytes, read)) == sent and bodies_in(broker, source) == []
