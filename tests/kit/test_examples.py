"""The tests on docs/testing.md, run as a reader would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pairbus.testing import SentMessage, ServiceBusNamespace
from tests.kit.test_plugin import run_pytest
from tests.pages import blocks_of
from tests.test_docs import cells, section

PAGE = "docs/testing.md"


@pytest.mark.slow
@pytest.mark.deep
def test_every_example_of_the_page_passes(tmp_path: Path) -> None:
    """Each block of code runs in a file of its own."""
    code = [block.text for block in blocks_of("test_every_example_of_the_page_passes")]
    count = sum(len(re.findall(r"^(?:async )?def test_", block, re.MULTILINE)) for block in code)
    assert count == 12
    assert re.search(rf"\b{count} passed", run_pytest(tmp_path, code))


def test_every_attribute_of_a_recorded_send_is_on_the_page() -> None:
    """A reader finds the fields that a test can compare."""
    named = set(re.findall(r"`(\w+)`", " ".join(row[0] for row in cells(section(PAGE, "Recorded sends")))))
    assert named - {"attribute"} == set(SentMessage.__slots__)


def test_every_method_of_a_namespace_is_on_the_page() -> None:
    """The table is the contract of the fixture."""
    named = {re.match(r"`(\w+)", row[0])[1] for row in cells(section(PAGE, "Fixtures")) if row[0].startswith("`")}  # type: ignore[index]
    assert {name for name in vars(ServiceBusNamespace) if not name.startswith("_")} <= named
