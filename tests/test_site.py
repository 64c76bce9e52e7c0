"""The documents as a site: every page has its place, and every link of the site leads to one of its pages.

`make docs` builds the site with Zensical, which checks links and anchors again. These tests read the Markdown only.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import pytest
from tools import build_docs

from tests.test_docs import slug

PAGES = build_docs.pages()
TEXTS = {page: text for page, (text, _) in PAGES.items()}
LISTED = [name for names in build_docs.CHAPTERS.values() for name in names]
ASKED_FOR = ["quickstart", "failover", "broker", "testing", "outages", "spark", "prices", "cli", "errors"]


def test_every_page_has_one_place_in_the_site() -> None:
    """A page that no chapter names would be built, and never found."""
    assert sorted(LISTED) == sorted(set(LISTED))
    decisions = {name for name in PAGES if name.startswith("decisions/0")}
    assert set(LISTED) == set(PAGES) - decisions
    assert {f"{name}.md" for name in [*ASKED_FOR, "differences", "integrations", "glossary"]} <= set(LISTED)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_of_the_site_lead_to_its_pages(page: str) -> None:
    """Links are rewritten when the pages move into one folder."""
    text, copied = PAGES[page]
    known = {*PAGES, *(build_docs.place(file) for file in copied)}
    for piece in (piece for is_prose, piece in build_docs.outside_of_code(text) if is_prose):
        for target, anchor in re.findall(r"\]\((?!https://)([^)#\s]*)(?:#([^)]*))?\)", piece):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
            assert path in known, f"{page} links to {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", TEXTS[path], re.MULTILINE)
                assert anchor in map(slug, headings), f"{page} links to {target}#{anchor}"
    assert all((build_docs.ROOT / file).is_file() for file in copied)


def test_llms_txt_has_every_page_with_a_sentence() -> None:
    """A program that reads it chooses pages by their first sentences."""
    text = build_docs.llms(TEXTS)
    entries = re.findall(r"^- \[(.+)\]\((.+)\): (.*)$", text, re.MULTILINE)
    assert [path for _, path, _ in entries] == LISTED
    assert [path for _, path, sentence in entries if len(sentence) < 20 or not sentence.endswith(".")] == []


def test_site_loads_nothing_from_elsewhere() -> None:
    """It is read on machines without internet: no font of a service, no diagram that a script of a CDN would draw."""
    assert "font = false" in build_docs.CONFIG
    assert [page for page, text in TEXTS.items() if "```mermaid" in text] == []
    drawn = build_docs.as_text(
        "```mermaid\nstateDiagram-v2\n    [*] --> HEALTHY\n    HEALTHY --> SUSPECT: send failed\n```"
    )
    assert drawn.splitlines()[1:-1] == ["start   → HEALTHY", "HEALTHY → SUSPECT   send failed"]


def test_fenced_blocks_are_not_changed() -> None:
    """A list in a block of code is no list, and a link in it is no link."""
    block = "```sh\n# [a](b.md)\n* x\n```"
    text, copied = build_docs.rendered(f"Text\n* [one](docs/spool.md)\n\n{block}\n", build_docs.ROOT / "README.md")
    assert text == f"Text\n\n* [one](spool.md)\n\n{block}\n"
    assert copied == set()


def test_stage_holds_everything_that_zensical_needs(tmp_path: Path) -> None:
    """Pages, pictures, linked programs and the configuration."""
    build_docs.stage(tmp_path)
    pages = tmp_path / "pages"
    assert (tmp_path / "zensical.toml").is_file()
    for file in ("index.md", "llms.txt", "report.png", "files/examples/outage_drill.py", "decisions/index.md"):
        assert (pages / file).is_file(), file
