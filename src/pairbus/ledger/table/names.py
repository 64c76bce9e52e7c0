"""Makes names of a ledger's files, by which a compacted file is recognised."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_OWN = re.compile(r"\d{4}-\d\d-\d\d-.+-\d+-[0-9a-f]{8}-(\d+)\.jsonl", re.ASCII)


def source_key(path: str) -> str:
    """Return the key of a file: its name when a ledger gave it, which no other process uses, or else its whole path.

    So a file that was moved to another folder or host is recognised.
    """
    name = PurePosixPath(path).name
    return name if _OWN.fullmatch(name) else path


def file_number(path: str) -> int | None:
    """Return the number of a file among those that its process wrote, in their order; None: no ledger gave the name."""
    match = _OWN.fullmatch(PurePosixPath(path).name)
    return None if match is None else int(match[1])
