"""Folders that need not be named on one machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.errors import ConfigError
from pairbus.spark import defaults, options
from pairbus.spark.source import stream_driver
from tests.brokers import BrokerProcess
from tests.spark.queues import put, text_message
from tests.spark.stream_world import Stream


def test_the_same_names_give_the_same_folder(tmp_path: Path) -> None:
    """Each set of names has one folder, without regard to case; a relative path in the variable is ignored."""
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    folder = defaults.state_folder("staging", "Contoso", "Orders/Subscriptions/a", environment=environment)
    assert folder.parent == tmp_path / "pairbus" / "staging"
    assert folder.name.startswith("contoso-orders-subscriptions-a-")
    assert folder == defaults.state_folder("staging", "contoso", "orders/subscriptions/A", environment=environment)
    others = [("contoso", "orders-subscriptions-a"), ("contoso-orders", "subscriptions/a"), ("contoso", "orders")]
    found = {defaults.state_folder("staging", *names, environment=environment) for names in others}
    assert len(found | {folder}) == 4
    at_home = defaults.state_folder("journal", "x", environment={"XDG_STATE_HOME": "here"})
    assert at_home.parent == Path("~/.local/state/pairbus/journal").expanduser()


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", True), ("local[2]", True), ("local[*,4]", True), ("local-cluster[1,1,1024]", False), ("yarn", False)],
)
def test_a_local_master_is_recognised(master: str, expected: bool) -> None:
    """A local-cluster has processes that need not share a home."""
    assert defaults.is_local_master(master) is expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--conf", "spark.master=local[2]", "pyspark-shell"], True),
        (["--master", "local", "pyspark-shell"], True),
        (["--master", "spark://host:7077", "pyspark-shell"], False),
        (["pyspark-shell"], False),
    ],
)
def test_the_master_is_read_from_the_jvm_above(arguments: list[str], expected: bool) -> None:
    """A process that stands for the JVM starts another one that asks; without a master the answer is no."""
    child = "from pairbus.spark.defaults import runs_on_local_master; print(runs_on_local_master())"
    above = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    command = [sys.executable, "-c", above, "org.apache.spark.deploy.SparkSubmit", *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == str(expected)


def test_a_local_stream_needs_no_staging_location(
    broker: BrokerProcess,
    queue_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The folder is told, a restart finds it again, and a second query of the entity is refused, not mixed in."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(options, "runs_on_local_master", lambda: True)
    monkeypatch.setattr(stream_driver, "HANDOVER_S", 0.2)
    put(broker, queue_name, [text_message("a")])
    stream = Stream(broker, queue_name, Path(), stagingLocation="", partitions="1")
    [partition] = stream.begin()
    [folder] = (tmp_path / "pairbus" / "staging").iterdir()
    assert capsys.readouterr().err == f"pairbus: stagingLocation of {queue_name} is {folder}\n"
    assert folder.stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match=r"option stagingLocation: another query of .* give one of them a folder"):
        Stream(broker, queue_name, Path(), stagingLocation="", partitions="1").begin()
    first = stream.task(partition)
    stream.reader.stop()
    stream.restart()
    assert [stream.task(partition) for partition in stream.begin()] == [first]
    stream.reader.stop()
