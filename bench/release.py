"""The base of a comparison: the package and the load programs of another commit, from the history of this checkout."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
SUBJECT = r"^[0-9]+\.[0-9]+\.[0-9]+: "
"Pattern of a release's commit subject, which begins with its number."
FOLDERS = ("src", "bench", "tools")


@dataclass(frozen=True)
class Tree:
    """A tree of sources whose programs are measured."""

    name: str
    "now or base."
    title: str
    "The commit."
    folder: Path = CHECKOUT

    @property
    def source(self) -> Path:
        return self.folder / "src"

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which Python runs the package and the load programs of this tree."""
        return os.environ | {"PYTHONPATH": f"{self.source}{os.pathsep}{self.folder}"}


class NoBase(Exception):
    """There is nothing to compare with; the text is the reason."""


def this_tree() -> Tree:
    return Tree("now", _git("log", "--max-count=1", "--format=%h %s", "HEAD"))


def base_tree(revision: str | None, folder: Path) -> Tree:
    """Unpack a commit into a folder: the one that is named, or the newest release before this commit."""
    named = [revision] if revision else ["--extended-regexp", f"--grep={SUBJECT}", "HEAD^"]
    title = _git("log", "--max-count=1", "--format=%h %s", *named)
    if not title:
        raise NoBase("the history of this checkout reaches no release; name a commit with BASE=")
    archive = subprocess.run(
        ["git", "archive", title.partition(" ")[0], *FOLDERS], cwd=CHECKOUT, capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return Tree("base", title, folder)


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoBase("git is not installed") from error
    if done.returncode:
        raise NoBase(done.stderr.strip())
    return done.stdout.strip()
