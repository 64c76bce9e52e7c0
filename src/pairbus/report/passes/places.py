"""Numbers damaged lines, and lines where a clock went back, from the pieces in which files were read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from pairbus.report.model import Damage
from pairbus.report.passes.records import FilePiece, LinePlace
from pairbus.report.passes.tally import JUMP_MS, SHOWN_MAX, plain_path


@dataclass(frozen=True, slots=True)
class DamagedPlaces:
    damaged: int
    clock_jumps: int
    shown: tuple[Damage, ...]
    "The first places, sorted by file and line."


def find_places(pieces: Iterable[FilePiece], places: Iterable[LinePlace]) -> DamagedPlaces:
    """Put the pieces of each file together: number all lines, and compare the clock from piece to piece.

    A clock went back when the time of a row is more than a second before that of the usable row above it. In tables
    rows have no order; damage there has the number of the row within the file.
    """
    by_place = attrgetter("path", "block")
    lines_before: dict[tuple[str, int], int] = {}
    all_places = list(places)
    damaged = jumps = 0
    for path, group in groupby(sorted(pieces, key=by_place), attrgetter("path")):
        lines, below_ms = 0, None
        for piece in group:
            lines_before[path, piece.block] = lines
            damaged, jumps = damaged + piece.damaged, jumps + piece.jumps
            if below_ms is not None and piece.above_ms is not None and below_ms - piece.above_ms > JUMP_MS:
                jumps += 1
                all_places.append(LinePlace(path, None, piece.block, piece.first_line, below_ms - piece.above_ms))
            lines += piece.lines
            below_ms = below_ms if piece.below_ms is None else piece.below_ms
    numbered = sorted(
        ((place.path, lines_before[place.path, place.block] + place.line, place) for place in all_places),
        key=lambda each: each[:2],
    )
    first = (Damage(plain_path(path), line, _reason(place)) for path, line, place in numbered[:SHOWN_MAX])
    return DamagedPlaces(damaged, jumps, tuple(first))


def _reason(place: LinePlace) -> str:
    return place.reason or f"the clock went back by {(place.back_ms or 0) / 1000:.3f} s; the row is used"
