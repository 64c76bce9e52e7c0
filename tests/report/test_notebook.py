"""The notebook of examples/, cell by cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "ledger_table.ipynb"
LIMIT_S = 240


@pytest.mark.spark
@pytest.mark.deep
def test_every_cell_of_the_notebook_runs(tmp_path: Path) -> None:
    """In one namespace and a process of its own, as a notebook's kernel has them."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
    environment = {name: value for name, value in os.environ.items() if name != "PAIRBUS_LEDGER"}
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=tmp_path,
        env=environment | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    first, second = (line for line in done.stdout.splitlines() if line.startswith("CompactedLedgers"))
    assert "rows=7" in first
    assert "rows=0" in second
    assert "no answer within 5 s" in done.stdout
