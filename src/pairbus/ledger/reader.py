"""Reads a ledger: torn lines are skipped, newer versions are an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path

from pairbus.errors import LedgerNewer
from pairbus.ledger.room import SUFFIX
from pairbus.ledger.rows import Row, decode

LedgerSource = str | PathLike[str]


class Rows(Iterator[Row]):
    """Iterator of rows, file by file; `skipped` counts the lines so far that were not rows."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.skipped = 0
        self._rows = self._read(paths)

    def __next__(self) -> Row:
        return next(self._rows)

    def _read(self, paths: Iterable[Path]) -> Iterator[Row]:
        for path in paths:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    try:
                        row = decode(line)
                    except LedgerNewer as newer:
                        raise LedgerNewer(f"{path}, line {number}: {newer}") from None
                    except (ValueError, RecursionError):  # torn by a kill or a full disk, or not ours
                        self.skipped += 1
                    else:
                        yield row


def read(source: LedgerSource | Iterable[LedgerSource]) -> Rows:
    """Read all rows of a folder, a file, or several of them.

    Rows of one file come in the order in which they were written; files in the order of their names, which begin with
    the day. A folder may be read while processes write to it: a last line that is not whole yet is skipped and counted.
    LedgerNewer when a row has a schema that this version does not know.
    """
    sources = [source] if isinstance(source, str | PathLike) else list(source)
    return Rows([path for each in sources for path in _files(Path(each))])


def _files(path: Path) -> list[Path]:
    return sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
