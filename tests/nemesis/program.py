"""The `pairbus` command with a witness, and with a planted bug where one is asked for.

    python -m tests.nemesis.program broker|syphon …

`NEMESIS_LOG` names the file of the witness of a syphon, `NEMESIS_BUG` a row of tests/nemesis/broken.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pairbus import cli
from tests.nemesis import broken
from tests.nemesis.log import Log
from tests.nemesis.places import LOCK_S


def main(*_: str) -> None:
    """Install what the environment asks for, and run the command of `sys.argv`."""
    if sys.argv[1:2] == ["syphon"]:
        from pairbus.syphon.decide import pace
        from tests.nemesis.watch import watch_moves  # a broker starts without the client

        pace.LOCK_S = float(LOCK_S)  # by default a syphon that keeps order waits a minute for locks that it cannot see
        log = Log(Path(os.environ["NEMESIS_LOG"]))
        watch_moves(log)
        log.add(("begin",))
    broken.plant(os.environ.get("NEMESIS_BUG", ""))
    cli.main()


if __name__ == "__main__":
    main()
