"""Run as a process of its own: commits one message to a store, lets the system refuse every sync from then on, tries to
put another message in its place, prints the error, and dies. `python child_without_sync.py FOLDER`"""

import asyncio
import ctypes
import os
import platform
import signal
import sys
from pathlib import Path

from pairbus.broker.store import Delete, Insert, PutEntity, StoredMessage, box_of
from pairbus.broker.store.sqlite import SqliteStore
from tests.store.common import commit

BOX = box_of(1)
CALLS = {"x86_64": (74, 75, 317), "aarch64": (82, 83, 277)}
"Numbers of fsync, fdatasync and seccomp, by machine."
EIO = 5


class Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint))


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(Instruction)))


def refuse_syncs() -> None:
    """Let fsync and fdatasync of all threads of this process fail with an input/output error, for good."""
    fsync, fdatasync, seccomp = CALLS[platform.machine()]
    rows = (
        Instruction(0x20, 0, 0, 0),  # load the number of the call
        Instruction(0x15, 1, 0, fsync),
        Instruction(0x15, 0, 1, fdatasync),
        Instruction(0x06, 0, 0, 0x00050000 | EIO),  # return the error
        Instruction(0x06, 0, 0, 0x7FFF0000),  # allow any other call
    )
    program = Program(len(rows), (Instruction * len(rows))(*rows))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0, "no new privileges, which a filter asks for"
    assert libc.syscall(seccomp, 1, 1, ctypes.byref(program)) == 0, os.strerror(ctypes.get_errno())


async def main(folder: Path) -> None:
    store = SqliteStore(folder)
    store.recover()
    assert await commit(store, PutEntity(1, "{}"), Insert(BOX, [StoredMessage(1, b"first", n=1)])) is None
    refuse_syncs()
    error = await commit(store, Delete(BOX, [1]), Insert(BOX, [StoredMessage(2, b"second", n=2)]))
    os.write(1, str(error).encode())
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
