"""The threads for the disk keep no work longer than they need it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from pairbus.spool.disk_threads import DiskThreads


class Payload:
    """Stands for the bytes of a message, which may be many."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def store(_: Payload) -> None:
    pass


def refuse(_: Payload) -> None:
    raise OSError("no space left on device")


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("append", [store, refuse])
def test_payload_is_free_as_soon_as_its_append_is_done(append: object) -> None:
    """In a reference cycle, the payloads of many appends would stay in memory until the garbage collector runs."""
    threads = DiskThreads(1)
    payload = Payload()
    seen = weakref.ref(payload)
    threads.submit(append, payload).exception()  # type: ignore[arg-type]
    del payload
    threads.submit(int).result()  # by the same thread, which has then left the first append
    assert seen() is None
    threads.shutdown()


@pytest.mark.usefixtures("no_collector")
def test_payload_of_a_cancelled_append_is_free_while_the_disk_hangs() -> None:
    threads = DiskThreads(1)
    answer = threading.Event()
    hung = threads.submit(answer.wait)
    payload = Payload()
    seen = weakref.ref(payload)
    append = threads.submit(store, payload)
    del payload
    assert append.cancel()
    assert seen() is None
    answer.set()
    assert hung.result(), "the thread goes on when the disk answers"
    assert threads.submit(int).result() == 0
    threads.shutdown()
