"""The files of `deploy/` and `.github/` agree with the product: no container engine is needed to know that."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from pairbus.cli import app

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


def test_workflow_runs_what_ci_runs() -> None:
    """Workflow and CI have one list of commands: if one passes, so does the other."""
    workflow = re.findall(r"- run: (.*)", (ROOT / ".github/workflows/ci.yml").read_text())
    ci = re.findall(r"^make .*", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert workflow == ci
