"""Build the documents as a site in `site/`, with Zensical: `make docs`.

The pages are the Markdown files of the repository; no text is written twice. This tool copies them into one folder,
turns their links into links of the site, takes the glossary out of ARCHITECTURE.md, and writes `llms.txt`. Zensical
then checks every link and anchor; a warning ends the build.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SITE = ROOT / "site"

# Chapter → pages of the site. A page of docs/ that is missing here fails tests/test_site.py.
CHAPTERS: dict[str, list[str]] = {
    "Start": ["index.md", "quickstart.md", "glossary.md", "changelog.md"],
    "Send": [
        "single-client.md",
        "receiving.md",
        "failover.md",
        "failover-guarantees.md",
        "failover-options.md",
        "failover-operating.md",
        "differences.md",
        "spool.md",
        "integrations.md",
        "errors.md",
        "rules.md",
        "verified.md",
    ],
    "Broker": ["broker.md", "deploy.md", "emulator.md", "filters.md", "testing.md", "outages.md", "security.md"],
    "Tools": ["cli.md", "messages.md", "dashboard.md", "telemetry.md"],
    "Spark, reports and cost": [
        "spark.md",
        "spark-guarantees.md",
        "spark-options.md",
        "spark-clusters.md",
        "spark-syphon.md",
        "ledger.md",
        "report.md",
        "prices.md",
    ],
    "Project": [
        "architecture.md",
        "internals.md",
        "contributing.md",
        "style.md",
        "nemesis.md",
        "formats.md",
        "releasing.md",
        "decisions/index.md",
    ],
}

# Files of the repository that have another name in the site. All of docs/ moves one folder up.
RENAMED = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "docs/decisions": "decisions/index.md",
}

LINK = re.compile(r"(\]\()(?!https?://|#)([^)#\s]+)(#[^)]*)?(\))")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LIST_ITEM = r"(?:[*-]|\d+\.) "

CONFIG = """\
[project]
site_name = "Pairbus"
site_description = "Send availability for Azure Service Bus"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = {nav}

[project.theme]
language = "en"
font = false
features = ["navigation.sections", "navigation.top", "search.highlight", "content.code.copy"]
"""


def sources() -> dict[str, Path]:
    """Return every page of the site that has a Markdown file of its own, and that file."""
    pages = {RENAMED[path.name]: path for path in sorted(ROOT.glob("*.md")) if path.name in RENAMED}
    docs = ROOT / "docs"
    return pages | {path.relative_to(docs).as_posix(): path for path in sorted(docs.rglob("*.md"))}


def place(path: str) -> str:
    """Return the path in the site of a file of the repository. Files that are no pages are copied to `files/`."""
    if path in RENAMED:
        return RENAMED[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def outside_of_code(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the pieces of a page: (True, prose) and (False, a fenced block)."""
    end = 0
    for block in FENCE.finditer(text):
        yield True, text[end : block.start()]
        yield False, block[0]
        end = block.end()
    yield True, text[end:]


def rendered(text: str, source: Path) -> tuple[str, set[str]]:
    """Return a page as the site has it, and the files of the repository that it links to and that are no pages."""
    here = source.relative_to(ROOT).as_posix()
    folder = posixpath.dirname(place(here))
    linked: set[str] = set()

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[2]))
        if place(target).startswith("files/") or not target.endswith(".md"):
            linked.add(target)
        return f"{link[1]}{posixpath.relpath(place(target), folder or '.')}{link[3] or ''}{link[4]}"

    pieces = []
    for is_prose, piece in outside_of_code(text):
        if piece.startswith("```mermaid"):
            piece = as_text(piece)
        elif is_prose:
            piece = LINK.sub(moved, piece)
            # Python-Markdown begins a list only after an empty line.
            piece = re.sub(rf"^(?!{LIST_ITEM}|[ |])(.+)\n(?={LIST_ITEM})", r"\1\n\n", piece, flags=re.MULTILINE)
        pieces.append(piece)
    return "".join(pieces), linked - set(RENAMED)


def as_text(diagram: str) -> str:
    """Return a diagram of states as a block of text: drawing it needs a script that a site without internet lacks."""
    rows = [line.strip().partition(": ") for line in diagram.splitlines() if "-->" in line]
    arrows = [
        (*(side.strip().replace("[*]", "start") for side in row.split("-->", 1)), label) for row, _, label in rows
    ]
    width = max((len(before) for before, _, _ in arrows), default=0)
    lines = [f"{before:<{width}} → {after}{f'   {label}' if label else ''}" for before, after, label in arrows]
    return "\n".join(["```text", *lines, "```"])


def glossary() -> str:
    """Return the glossary of ARCHITECTURE.md as a page of its own."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return "# Glossary\n" + text.split("\n# Glossary\n")[1].split("\n# ")[0]


def decisions() -> str:
    """Return the list of decisions, by number."""
    files = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    lines = [f"* [{file.stem[:4]} {title(file.read_text(encoding='utf-8'))}]({file.name})" for file in files]
    return "# Decisions\n\nOne page for each choice that could have gone otherwise.\n\n" + "\n".join(lines) + "\n"


def title(text: str) -> str:
    found = re.search(r"^# (.*)$", text, re.MULTILINE)
    assert found is not None, "a page begins with its title"
    return found[1]


def summary(text: str) -> str:
    """Return the first sentence of a page."""
    for paragraph in FENCE.sub("", text).split("\n\n")[1:]:
        line = " ".join(paragraph.split())
        if line and not line.startswith(("#", "|", "[", "<!--", "* ", "!")):
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line)
            first = re.split(r"(?<=\.) ", plain, maxsplit=1)[0]
            return f"{first[:-1]}." if first.endswith(":") else first
    return ""


def pages() -> dict[str, tuple[str, set[str]]]:
    """Return every page of the site by its path: its text, and the other files that it needs."""
    found = {page: rendered(path.read_text(encoding="utf-8"), path) for page, path in sources().items()}
    found["glossary.md"] = rendered(glossary(), ROOT / "ARCHITECTURE.md")
    found["decisions/index.md"] = decisions(), set()
    return found


def llms(texts: dict[str, str]) -> str:
    """Return `llms.txt`: a description of the product, and each page with its first sentence, for programs."""
    lines = ["# Pairbus", "", f"> {summary(texts['index.md'])}", ""]
    for chapter, names in CHAPTERS.items():
        lines += [f"## {chapter}", ""]
        lines += [f"- [{title(texts[name])}]({name}): {summary(texts[name])}" for name in names]
        lines.append("")
    return "\n".join(lines)


def stage(folder: Path) -> None:
    """Write the input of Zensical into an empty folder."""
    target = folder / "pages"
    found = pages()
    for page, (text, linked) in found.items():
        (target / page).parent.mkdir(parents=True, exist_ok=True)
        (target / page).write_text(text, encoding="utf-8")
        for file in linked:
            copy = target / place(file)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, copy)
    (target / "llms.txt").write_text(llms({page: text for page, (text, _) in found.items()}), encoding="utf-8")
    nav = ", ".join(f"{{{json.dumps(chapter)} = {json.dumps(names)}}}" for chapter, names in CHAPTERS.items())
    (folder / "zensical.toml").write_text(CONFIG.format(nav=f"[{nav}]"), encoding="utf-8")


def main() -> int:
    """Build the site. The old one stays until the new one is whole."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stage(folder)
        built = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, check=False)
        if built.returncode == 0:
            # The Markdown is beside each page: `llms.txt` links to it.
            shutil.copytree(folder / "pages", folder / "site", dirs_exist_ok=True)
            shutil.rmtree(SITE, ignore_errors=True)
            shutil.copytree(folder / "site", SITE)
            print(f"{SITE.name}/index.html: {len(list(SITE.rglob('*.html')))} pages")
            print(f"For the search, serve it: python3 -m http.server --bind 127.0.0.1 --directory {SITE.name}")
        return built.returncode


if __name__ == "__main__":
    sys.exit(main())
