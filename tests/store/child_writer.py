"""Run as a process of its own: fills a store until it is killed, and prints the last number of every group it was told
is committed. `python child_writer.py FOLDER`"""

import asyncio
import os
import sys
from pathlib import Path

from pairbus.broker.store import Delete, Insert, PutEntity, StoredMessage, box_of
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.errors import StoreError

BOX = box_of(1)
GROUP = 20


def body_of(seq: int) -> bytes:
    return seq.to_bytes(8, "big") * 128


async def main(folder: Path) -> None:
    store = SqliteStore(folder)
    recovered = store.recover()
    store.write(PutEntity(1, "{}"))
    last = recovered.entities[0].last_seq if recovered.entities else 0

    def told(error: StoreError | None, seq: int) -> None:
        assert error is None
        os.write(1, f"{seq}\n".encode())

    while True:
        store.write(Insert(BOX, [StoredMessage(seq, body_of(seq), n=seq) for seq in range(last + 1, last + 1 + GROUP)]))
        store.write(Delete(BOX, [last + 1]))  # the first message of every group is deleted at once
        last += GROUP
        store.after_commit(lambda error, seq=last: told(error, seq))  # type: ignore[misc]
        await asyncio.sleep(0.0005)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
