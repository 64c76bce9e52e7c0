"""A task of a stream in a process of its own that is killed, with SIGKILL, at a point of its work.

python -m tests.spark.stream_child FILE POINT      FILE: the pickled reader and its partition
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

from pairbus.spark.source.intake import SealTracker, _Intake
from pairbus.spark.source.stream_reader import StagedStreamReader
from pairbus.spark.staging.log import Staging
from pairbus.spark.staging.stage_file import StageWriter

POINTS: dict[str, tuple[type, str]] = {
    "when all is received, before the stage is on the disk": (StageWriter, "finish"),
    "when the stage is on the disk, before the seal": (SealTracker, "try_to_seal"),
    "when it is sealed, before it is completed": (_Intake, "complete"),
    "when it is completed, before that is noted": (Staging, "confirm"),
    "when that is noted, before the first row": (StagedStreamReader, "_rows"),
    "when all rows are given, before that is noted": (Staging, "note_read"),
}


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    file, point = sys.argv[1:]
    if point in POINTS:
        kind, method = POINTS[point]
        setattr(kind, method, die)
    reader, partition = pickle.loads(Path(file).read_bytes())
    for _ in reader.read(partition):
        if POINTS.get(point) != (Staging, "note_read"):
            die()  # dies after the first rows


if __name__ == "__main__":
    main()
