"""`pairbus` with a page that paints another number of rows before all others, for comparisons.

SCREEN_ROWS=100 python -m tests.dashboard.changed_page broker --namespace contoso=0
"""

from __future__ import annotations

import os
import re

from pairbus.cli import main
from pairbus.dashboard import files

FILE = "overview.js"
VARIABLE = "SCREEN_ROWS"


def change(rows: int) -> None:
    """Let this process serve the page with so many rows in its first painting."""
    served = files._files()
    body, kind = served[FILE]
    changed, count = re.subn(rb"const SCREEN_ROWS = \d+;", f"const SCREEN_ROWS = {rows};".encode(), body)
    assert count == 1, f"{FILE} has no SCREEN_ROWS any more"
    served[FILE] = changed, kind


if __name__ == "__main__":
    change(int(os.environ[VARIABLE]))
    main()
