"""The files of `deploy/` and `.github/` agree with the product: no container engine is needed to know that."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from pairbus.cli import app
from pairbus.cli.serve.broker import DEFAULT_PORT
from pairbus.cli.serve.emulator import CONFIG_FILE, HTTP_PORT
from pairbus.testing.broker_thread import BrokerThread
from tests.dockerfile import command_of, faults_of, instructions

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"


def variables_of_the_broker() -> set[str]:
    command = typer.main.get_command(app).commands["broker"]  # type: ignore[attr-defined]
    return {name for option in command.params for name in _names(option.envvar)}


def _names(variable: str | list[str] | None) -> list[str]:
    return [variable] if isinstance(variable, str) else list(variable or [])


def test_deployment_sets_only_variables_of_the_broker() -> None:
    """A variable that the broker does not read would leave it with a default, such as a folder without a volume."""
    for file in ("Dockerfile", "compose.yaml", "pairbus-broker.service"):
        used = set(re.findall(r"\bPAIRBUS_[A-Z_]+\b", (DEPLOY / file).read_text()))
        assert used, file
        assert used <= variables_of_the_broker(), file


def test_image_is_checked_by_health_and_runs_without_root() -> None:
    """Root in a container is root on the host if a process breaks out."""
    text = (DEPLOY / "Dockerfile").read_text()
    assert 'CMD ["pairbus", "health"]' in text, "with an address it would not ask the configured namespaces"
    assert text.index("\nUSER pairbus\n") < text.index("\nENTRYPOINT")
    data = re.search(r"PAIRBUS_DATA=(\S+)", text)
    assert data is not None
    assert f"\nVOLUME {data[1]}\n" in text


@pytest.mark.parametrize("name", ["Dockerfile", "worker.Dockerfile"])
def test_dockerfile_is_written_by_the_rules(name: str) -> None:
    """No engine is here to build it: the rules of its usual linter find what would be found there."""
    assert faults_of((DEPLOY / name).read_text()) == []


def test_image_of_the_worker_finds_its_program() -> None:
    """Files that `.dockerignore` does not let through are not in the image."""
    let_through = re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    used = re.findall(r"/src/(examples/\S+)", (DEPLOY / "worker.Dockerfile").read_text())
    assert used and set(used) <= set(let_through)
    assert all((ROOT / name).exists() for name in used)


@pytest.mark.deep
@pytest.mark.slow
def test_worker_of_the_image_is_healthy_during_an_outage_and_stops_in_order(tmp_path: Path) -> None:
    """Its command, its health check and its signal, without an engine."""
    found = {each.name: each.value for each in instructions((DEPLOY / "worker.Dockerfile").read_text())}
    entry, words, health = (command_of(found[name]) for name in ("ENTRYPOINT", "CMD", "HEALTHCHECK"))
    assert entry is not None and words is not None and health is not None and entry[0] == "python"
    with BrokerThread(["contoso", "fabrikam"]) as broker:
        broker.create_queue(words[0])
        ends = {"PRIMARY": "contoso", "SECONDARY": "fabrikam"}
        given = {f"PAIRBUS_{side}": broker.connection_string(name) for side, name in ends.items()}
        env = {**os.environ, **given, "PAIRBUS_CONTROL_DIR": str(tmp_path)}

        def ask() -> int:
            command = [sys.executable, "-m", *health]
            return subprocess.run(command, env=env, capture_output=True, timeout=60, check=False).returncode

        worker = subprocess.Popen([sys.executable, *entry[1:], *words], cwd=ROOT / "examples", env=env)
        try:
            ends_at = time.monotonic() + 60
            while ask() != 0:
                assert time.monotonic() < ends_at and worker.poll() is None
            with broker.namespace("contoso").outage("refuse"):
                assert ask() == 0
            number = {"SIGTERM": signal.SIGTERM}[found["STOPSIGNAL"]]
            worker.send_signal(number)
            assert worker.wait(60) == 0
        finally:
            worker.kill()
        assert ask() == 1


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("FROM python", "no fixed tag"),
        ("FROM python:latest", "no fixed tag"),
        ("USER root", "runs as root"),
        ("RUN pip install pairbus", "cache"),
        ("RUN false; true", "hidden"),
        ("CMD pairbus broker", "JSON form"),
        ('CMD ["a"]\nCMD ["b"]', "CMD occurs 2 times"),
        ("ENV PAIRBUS_KEY=abc", "secret"),
        ("ADD x /x", "COPY"),
        ("WORKDIR data", "absolute"),
        ("EXPOSE 567200", "no ports"),
        ("BUILD true", "unknown instruction"),
    ],
)
def test_rules_for_dockerfiles_find_their_faults(line: str, fault: str) -> None:
    """A linter that finds nothing would pass any file."""
    start = "" if line.startswith("FROM") else "FROM python:3.11-slim\nUSER pairbus\n"
    assert any(fault in found for found in faults_of(f"{start}{line}\n"))


def test_image_has_the_ports_and_the_place_of_the_emulator() -> None:
    """Tools that name the emulator's image find its ports and copy its file; the command takes no option for that."""
    found = {each.name: each.value for each in instructions((DEPLOY / "Dockerfile").read_text())}
    assert found["EXPOSE"].split() == [str(DEFAULT_PORT), str(HTTP_PORT)]
    assert f"mkdir -p {CONFIG_FILE.parent}" in found["RUN"]
    assert (command_of(found["ENTRYPOINT"]), command_of(found["CMD"])) == (["pairbus"], ["emulator"])


def test_workflow_runs_what_ci_runs() -> None:
    """Workflow and CI have one list of commands: if one passes, so does the other."""
    workflow = re.findall(r"- run: (.*)", (ROOT / ".github/workflows/ci.yml").read_text())
    ci = re.findall(r"^make .*", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert workflow == ci


@pytest.mark.deep
@pytest.mark.slow
def test_steps_of_the_image_lead_to_a_healthy_emulator(tmp_path: Path) -> None:
    """No container engine is here: the steps are carried out in an empty root, and the command runs as its user."""
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    try:
        subprocess.run([*namespaces, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("namespaces of the system need root")
    command = [sys.executable, "-m", "tests.image_root", str(DEPLOY / "Dockerfile"), str(tmp_path)]
    ran = subprocess.run([*namespaces, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Emulator Service is Successfully Up!\nhealthy\nended with 0\n" in ran.stdout
    assert "WARNING: LISTENING ON 0.0.0.0 WITH THE WELL-KNOWN KEY" in ran.stderr
