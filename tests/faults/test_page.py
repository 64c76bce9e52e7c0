"""docs/outages.md says what the table of faults says, and its examples work."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.broker import Broker, NamespaceOptions
from pairbus.faults import KINDS
from pairbus.proxy import Proxy
from tests.faults.test_control import pairbus
from tests.pages import blocks_of

PAGE = (Path(__file__).parent.parent.parent / "docs" / "outages.md").read_text(encoding="utf-8")
EXAMPLES = [block.text.strip() for block in blocks_of("test_example_switches_its_fault_on")]


def test_table_of_the_page_is_the_table_of_the_code() -> None:
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if re.match(r"\| `[a-z-]+` \| [A-Z]", line)]
    shown = {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in rows}
    expected = {
        kind.name: [
            kind.meets,
            ", ".join(kind.directions),
            ", ".join(f"`{one.name}` = {one.default:g}" for one in kind.arguments),
            ", ".join(sorted(kind.at)),
        ]
        for kind in KINDS.values()
    }
    assert shown == expected


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_chapter_with_an_example(kind: str) -> None:
    chapter = PAGE.split(f"\n### {kind}\n")[1].split("\n### ")[0]
    assert f"pairbus fault add {kind} " in chapter


@pytest.mark.parametrize("example", [line for line in EXAMPLES if "proxy.sock" in line])
async def test_example_switches_its_fault_on_at_a_proxy(example: str, tmp_path: Path) -> None:
    """As it is typed, against a proxy of this process that ends TLS and has a name."""
    control = tmp_path / "proxy.sock"
    async with Proxy("127.0.0.1", 1, tls=tmp_path / "tls", control=control) as proxy:
        with proxy.known_as("contoso.example"):
            words = shlex.split(example.replace("proxy.sock", str(control)))
            assert await pairbus(*words[1:]) == (0, "1\n", "")
            [shown] = proxy.faults.list()
            assert shown["kind"] == words[3]


@pytest.mark.parametrize("example", [line for line in EXAMPLES if "proxy.sock" not in line])
async def test_example_switches_its_fault_on(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is typed, against a broker whose data folder is where the reader's is."""
    async with Broker([NamespaceOptions("contoso")], data=None) as broker:
        monkeypatch.setenv("PAIRBUS_CONNECTION_STRING", broker.connection_string("contoso"))
        words = shlex.split(example.replace("pairbus-data/control.sock", str(broker.control_socket)))
        code, out, err = await pairbus(*words[1:])
        assert (code, err) == (0, "")
        [shown] = broker.namespace("contoso").faults.list()
        assert (shown["kind"], out) == (words[3], "1\n")


def test_python_of_the_page_runs() -> None:
    told = []
    for block in blocks_of("test_python_of_the_page_runs"):
        done = subprocess.run(
            [sys.executable, "-c", block.text], capture_output=True, text=True, timeout=60, check=False
        )
        told.append(done.stdout or done.stderr)
    assert told == ["busy\nsent []\n", "no such name\nsent []\n"]
