"""Write docs/report.png from a page of `pairbus report`: `python -m tools.draw_report [PAGE]`.

Without a page it draws the example of the tests. Needs Chromium; pngquant, if installed, makes it a third of the size.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.report.chromium import browser
from tests.report.example import example_report

from pairbus.report.page import render

PICTURE = Path(__file__).parent.parent / "docs" / "report.png"
WIDTH, HEIGHT = 1000, 1385


def draw(page: Path) -> bytes:
    """Return a picture of the head of the page, in light colours and the width of a desktop."""
    with browser() as tab:
        tab.open(page, width=WIDTH, colours="light")
        picture = tab.picture(HEIGHT)
    if shutil.which("pngquant") is None:
        return picture
    return subprocess.run(["pngquant", "256", "-"], input=picture, capture_output=True, check=True).stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(render(example_report()), encoding="utf-8")
        given = [Path(name).absolute() for name in sys.argv[1:]]
        PICTURE.write_bytes(draw(given[0] if given else page))


if __name__ == "__main__":
    main()
