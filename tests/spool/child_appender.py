"""Run as a process of its own: appends until it is killed, and prints the number of every group that it was told is
stored. `python -m tests.spool.child_appender FOLDER FIRST`"""

import os
import sys
import threading
from itertools import count
from pathlib import Path

from pairbus.spool import Spool
from tests.spool.entries import entries

GROUP = 3
THREADS = 4


def main(folder: Path, first: int) -> None:
    spool = Spool(folder)
    groups = count(first)
    taking = threading.Lock()

    def append_for_ever(name: int) -> None:
        while True:
            with taking:
                group = next(groups)
            spool.append(entries(range(group * GROUP, group * GROUP + GROUP), f"path-{name}"))
            os.write(1, f"{name} {group}\n".encode())

    for name in range(THREADS):
        threading.Thread(target=append_for_ever, args=(name,)).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
