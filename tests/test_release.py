"""The release is made by files that nobody runs every day: they agree with each other and with the Makefile."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.release_check import problems

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def workflow(name: str) -> dict[Any, Any]:
    read: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    return read


def steps(read: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in read["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_command_of_a_workflow_is_a_target_of_make(path: Path) -> None:
    """A workflow that calls a command of its own is tested by nobody before it fails."""
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text()))
    commands = [step["run"] for step in steps(workflow(path.name)) if "run" in step]
    assert commands
    for command in commands:
        words = command.split()
        assert words[0] == "make" and words[1] in targets, command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_to_a_commit(path: Path) -> None:
    """A tag can be moved to other code after it was reviewed."""
    for step in steps(workflow(path.name)):
        if "uses" in step:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
    for line in path.read_text().splitlines():
        assert "uses:" not in line or re.search(r"  # v\d+\.\d+\.\d+$", line), f"no version beside the commit: {line}"


def test_publishing_needs_no_token_and_nothing_else_may_ask_for_one() -> None:
    """Trusted publishing: only the job that publishes gets an identity, and no secret is named anywhere."""
    read = workflow("release.yml")
    assert read["permissions"] == {"contents": "read"}
    publish = read["jobs"]["publish"]
    assert (publish["permissions"], publish["environment"], publish["needs"]) == (
        {"id-token": "write"},
        "pypi",
        "build",
    )
    assert "permissions" not in read["jobs"]["build"]
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert not any("run" in step for step in publish["steps"]), "code of ours would run with the identity"


def test_a_tag_starts_the_release_and_is_no_part_of_a_command() -> None:
    """Text of a tag in a command would be run by the shell."""
    read = workflow("release.yml")
    assert read[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` as true
    assert all("${{" not in step["run"] for step in steps(read) if "run" in step)


def test_the_published_files_are_those_that_were_built() -> None:
    """The bill of materials is no distribution: PyPI would refuse the upload."""
    uploads = [step["with"] for step in steps(workflow("release.yml")) if "upload-artifact" in step.get("uses", "")]
    makefile = (ROOT / "Makefile").read_text()
    assert [upload["path"] for upload in uploads] == ["dist/pairbus-*", "dist/sbom.cdx.json"]
    assert "-m build --outdir dist\n" in makefile and "-o dist/sbom.cdx.json" in makefile


def test_the_version_is_the_same_in_both_places() -> None:
    """`pairbus --version` and pip must not disagree."""
    assert problems(ROOT, None) == []


def test_a_tag_that_the_repository_is_not_ready_for_is_refused(tmp_path: Path) -> None:
    """Every place that was forgotten is named at once."""
    (tmp_path / "src" / "pairbus").mkdir(parents=True)
    for name in ("pyproject.toml", "src/pairbus/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} (unreleased)\n")
    said = problems(tmp_path, "v99.0.0")
    assert len(said) == 3
    assert f"the tag must be v{version}" in said[0] and "(unreleased)" in said[1] and "write_samples" in said[2]
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version}\n")
    (tmp_path / "tests" / "samples" / version.rpartition(".")[0]).mkdir(parents=True)
    assert problems(tmp_path, f"v{version}") == []


def test_every_page_of_the_package_index_has_what_it_asks_for() -> None:
    """Name, links, licence and versions of Python are read from the metadata alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= project["urls"].keys()
    assert len(project["keywords"]) >= 5 and project["license"] == "MIT"
    minors = [text.rpartition(" ")[2] for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert minors[0] == project["requires-python"].removeprefix(">=")
    assert workflow("ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == minors
