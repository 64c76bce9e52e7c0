"""The page as a browser shows it: on a phone and on a desk, in light and dark, without a network or a complaint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path

import pytest

from pairbus.report.model import Report
from pairbus.report.page import render
from tests.report.chromium import Tab, browser
from tests.report.example import empty_report, example_report, fleet_report

pytestmark = pytest.mark.slow

CET = timezone(timedelta(hours=1), "CET")
LOOKS = [(360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")]

# Text with less contrast to its background than WCAG (AA) asks for: 4.5, or 3 for large text.
PALE = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true}), known = {};
  const bytes = color => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return known[color] ??= [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = bytes(getComputedStyle(e).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255];
  };
  const pale = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
    if (!walk.currentNode.data.trim() || !box.width || ['title', 'desc'].includes(e.tagName)) continue;
    const inSvg = e instanceof SVGElement;
    const [a, b] = [light(bytes(inSvg ? style.fill : style.color)), light(behind(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.6 && style.fontWeight >= 700);
    seen += 1;
    if (ratio < (large ? 3 : 4.5)) pale.push([walk.currentNode.data.slice(0, 40), ratio.toFixed(2)]);
  }
  return {seen, pale};
})()
"""

# Labels of one plot that lie on each other, and labels that leave the window.
CROWDED = """
(() => {
  const bad = [];
  for (const svg of document.querySelectorAll('svg.plot, svg.axis')) {
    const boxes = [...svg.querySelectorAll('text')].filter(t => t.getClientRects().length)
      .map(t => [t.textContent, t.getBoundingClientRect()]);
    boxes.forEach(([words, a], i) => {
      if (a.left < 0 || a.right > innerWidth) bad.push(`${words} leaves the window`);
      for (const [other, b] of boxes.slice(i + 1))
        if (a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom)
          bad.push(`${words} lies on ${other}`);
    });
  }
  return bad;
})()
"""

# Lines of marks that go through the label of another one.
CROSSED = """
[...document.querySelectorAll('svg text.strong')].filter(t => t.getClientRects().length).flatMap(text => {
  const words = text.getBoundingClientRect();
  return [...text.closest('svg').querySelectorAll('line.mark')].map(line => line.getBoundingClientRect())
    .filter(b => words.left < b.left - 2 && b.right + 2 < words.right && b.top < words.bottom && words.top < b.bottom)
    .map(() => text.textContent);
})
"""

EMPTY_BOXES = """
[...document.querySelectorAll('svg.plot, svg.lane, svg.axis, path.line, path.area')]
  .filter(e => !e.closest('details:not([open])'))
  .filter(e => { const box = e.getBoundingClientRect(); return box.width < 1 || box.height < 1; })
  .map(e => e.outerHTML.slice(0, 120))
"""

DRAWN = """
[...document.querySelectorAll('svg.plot[role=img]')].filter(svg => svg.checkVisibility())
  .map(svg => [...svg.querySelectorAll('rect.bar, path.line, path.solid')]
  .map(e => e.getBoundingClientRect()).filter(box => box.width >= 3 && box.height >= 3).length)
"""

# Amounts of money that take more than one line.
BROKEN_MONEY = """
[...document.querySelectorAll('td, .end, .value, .pairs strong')].filter(e => /[$][0-9]/.test(e.textContent))
  .filter(e => { const range = document.createRange(); range.selectNodeContents(e);
                 return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1; })
  .map(e => e.textContent)
"""

# Rows of a figure over time whose pictures do not begin and end at the same places.
MISALIGNED = """
[...document.querySelectorAll('figure.timeline')].filter(e => e.checkVisibility()).map(figure =>
  [...figure.querySelectorAll('.row > svg')].map(e => e.getBoundingClientRect()).map(b => `${b.left} ${b.right}`))
  .filter(places => new Set(places).size !== 1)
"""

TOO_WIDE = """
[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && !e.closest('.unseen'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + .5).map(e => e.outerHTML.slice(0, 120))
"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as tab:
        yield tab


def opened(tab: Tab, report: Report, folder: Path, width: int, colours: str) -> None:
    page = folder / "report.html"
    page.write_text(render(report, lambda at: at.astimezone(CET)), encoding="utf-8")
    tab.open(page, width=width, colours=colours)
    assert tab.requests == [page.as_uri()], "the page asked the network for something"
    assert tab.complaints == []
    assert tab.ask("innerWidth") == width, "the page is wider than a phone, which then shows it smaller"
    assert tab.ask("document.scrollingElement.scrollWidth") <= width
    assert tab.ask(TOO_WIDE) == []


@pytest.mark.parametrize(("width", "colours"), LOOKS)
def test_everything_can_be_read(tab: Tab, tmp_path: Path, width: int, colours: str) -> None:
    """No sideways scrolling, no text that is too pale, no label on another, no plot without a size."""
    opened(tab, example_report(trouble=True), tmp_path, width, colours)
    contrast = tab.ask(PALE)
    assert contrast["seen"] > 200 and contrast["pale"] == []
    assert tab.ask(CROWDED) == []
    assert tab.ask(CROSSED) == []
    assert tab.ask(EMPTY_BOXES) == []
    assert tab.ask(DRAWN) == [3, 1, 1, 3, 1, 1, 11, 8], "sends, backlog, age: period and incident; delays; hours"
    assert tab.ask("document.querySelectorAll('svg.lane').length") >= 8
    assert tab.ask(BROKEN_MONEY) == []
    assert tab.ask(MISALIGNED) == []


@pytest.mark.parametrize(("width", "height"), [(1280, 4000), (360, 8000)])
def test_two_outages_of_twenty_queues_fit_a_short_page(tab: Tab, tmp_path: Path, width: int, height: int) -> None:
    """Details are folded at first; nothing gets out of the page when all of them are unfolded."""
    opened(tab, fleet_report(), tmp_path, width, "light")
    assert tab.ask("document.documentElement.offsetHeight") <= height
    assert tab.ask(CROWDED) == []
    tab.ask("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert tab.ask("document.querySelectorAll('.incident tbody tr').length") == 40
    assert tab.ask(TOO_WIDE) == [] and tab.ask(CROWDED) == [] and tab.ask(MISALIGNED) == []


def test_light_and_dark_differ(tab: Tab, tmp_path: Path) -> None:
    """The page follows the reader's choice."""
    papers = set()
    for colours in ("light", "dark"):
        opened(tab, example_report(), tmp_path, 1280, colours)
        papers.add(tab.ask("getComputedStyle(document.body).backgroundColor"))
    assert len(papers) == 2


def test_an_empty_report_fits_a_phone(tab: Tab, tmp_path: Path) -> None:
    """The page draws no figure, and the browser reports no error."""
    opened(tab, empty_report(), tmp_path, 360, "light")
    assert tab.ask("document.querySelectorAll('svg').length") == 0
    assert tab.ask(PALE)["pale"] == []


def test_names_of_any_length_stay_in_the_page(tab: Tab, tmp_path: Path) -> None:
    """Entities have up to 260 characters, and reasons come from a service that may say anything."""
    report = example_report(trouble=True)
    there = report.availability
    long = {one.entity: (one.entity + "/very-long-name") * 16 for one in there.entities}
    availability = replace(
        there,
        entities=tuple(replace(one, entity=long[one.entity]) for one in there.entities),
        outages=tuple(replace(one, entity=long[one.entity], reason="x" * 500) for one in there.outages),
        states=tuple(replace(one, entity=long[one.entity]) for one in there.states),
        dead_letters=tuple(replace(one, entity=long[one.entity], reason="y" * 500) for one in there.dead_letters),
    )
    lines = tuple(replace(line, entity=long.get(line.entity, line.entity)) for line in report.bill.lines)
    opened(
        tab, replace(report, availability=availability, bill=replace(report.bill, lines=lines)), tmp_path, 360, "dark"
    )
    assert tab.ask(CROWDED) == []


def test_a_name_that_is_a_script_does_not_run(tab: Tab, tmp_path: Path) -> None:
    """The name is escaped; and the page's own policy would not let a script run if it were not."""
    report = example_report()
    there = report.availability
    evil = "</title><script>document.documentElement.id='run'</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"
    entities = tuple(replace(one, entity=evil) for one in there.entities)
    outages = tuple(replace(one, entity=evil, reason=evil) for one in there.outages)
    opened(
        tab, replace(report, availability=replace(there, entities=entities, outages=outages)), tmp_path, 1280, "light"
    )
    assert tab.ask("document.documentElement.id + document.scripts.length + document.images.length") == "00"
    assert evil in tab.ask("document.body.textContent")


# Labels of a picture that lie on each other; a label is a line of text.
COLLIDING = """
(() => {
  const boxesOf = node => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return [...range.getClientRects()].filter(box => box.width > 1).map(box => [node.data, box]);
  };
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  return [...document.querySelectorAll('.timeline .row, figure')].flatMap(picture => {
    const labels = [...picture.querySelectorAll('span, small, figcaption, text, tspan')];
    const boxes = labels.flatMap(one => [...one.childNodes])
      .filter(node => node.nodeType === 3 && node.data.trim()).flatMap(boxesOf);
    return boxes.flatMap(([text, box], at) => boxes.slice(at + 1)
      .filter(([, other]) => meet(box, other)).map(([other]) => `${text} | ${other}`));
  });
})()
"""
# Lists of key figures and of sums that leave a part of a row empty.
HALF_EMPTY = """
[...document.querySelectorAll('.tiles, .pairs')].filter(e => e.checkVisibility()).filter(e => {
  const ends = new Map(), first = e.firstElementChild.getBoundingClientRect();
  for (const one of e.children) ends.set(Math.round(one.getBoundingClientRect().bottom), one.getBoundingClientRect());
  const isWide = innerWidth > 1000 && [...ends.values()].at(-1).width > 1.9 * first.width;
  return isWide || [...ends.values()].some(last => last.right < e.getBoundingClientRect().right - 3);
}).map(e => e.textContent.slice(0, 60))
"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("make_report", [example_report, fleet_report], ids=["example", "fleet"])
def test_labels_do_not_collide_and_rows_are_full(
    tab: Tab, tmp_path: Path, make_report: Callable[[], Report], width: int
) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(make_report()), encoding="utf-8")
    tab.open(page, width=width, colours="light")
    assert tab.ask(COLLIDING) == []
    assert tab.ask(HALF_EMPTY) == []
