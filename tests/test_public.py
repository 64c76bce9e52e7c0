"""Users rely on names of packages, options and commands: none comes or goes by accident."""

from __future__ import annotations

import json

import pytest

from tests.public import KEPT, public

KEPT_NAMES = json.loads(KEPT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("part", KEPT_NAMES)
def test_public_names_are_those_that_were_decided(part: str) -> None:
    """After a decision: `python -m tests.public --write`, and a line in CHANGELOG.md."""
    assert public()[part] == KEPT_NAMES[part]
