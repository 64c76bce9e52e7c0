"""The one thread that gives every call of a sync receiver a deadline."""

from __future__ import annotations

import threading
import time

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.sdk import watchdog
from pairbus.sdk.watchdog import guarded


def test_a_call_is_freed_although_breaking_an_earlier_one_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog looks into the frames of running threads, where anything may be; if it died, no call would have
    a deadline.
    """
    freed, went_wrong = threading.Event(), threading.Event()

    def break_socket(owner: object) -> bool:
        if owner == "unlucky" and not freed.is_set():
            went_wrong.set()
            raise RuntimeError("dictionary changed size during iteration")
        freed.set()
        return True

    def hangs() -> None:
        assert freed.wait(10)
        raise ConnectionError("the socket was shut down")

    def late(owner: str) -> None:
        with pytest.raises(OperationTimeoutError):
            guarded(hangs, owner, time.monotonic())

    monkeypatch.setattr("pairbus.sdk.watchdog.break_socket", break_socket)
    unlucky = threading.Thread(target=late, args=("unlucky",))
    unlucky.start()
    assert went_wrong.wait(5)
    late("another")
    unlucky.join(10)


def test_a_call_without_any_hurry_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time may be longer than a thread can wait."""
    assert guarded(lambda: "done", "owner", time.monotonic() + 1e12) == "done"
    freed = threading.Event()
    monkeypatch.setattr("pairbus.sdk.watchdog.break_socket", lambda owner: freed.set())

    def hangs() -> None:
        assert freed.wait(10)
        raise ConnectionError("the socket was shut down")

    with pytest.raises(OperationTimeoutError):
        guarded(hangs, "owner", time.monotonic())


def test_a_call_that_cannot_be_broken_off_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of the SDK may hide its socket; the caller still gets an answer in time."""
    monkeypatch.setattr(watchdog, "CAN_BREAK", False)
    let_go = threading.Event()

    def fails() -> None:
        raise TimeoutError("the call's own")

    assert guarded(lambda: "done", "owner", time.monotonic() + 10) == "done"
    with pytest.raises(TimeoutError, match="the call's own"):
        guarded(fails, "owner", time.monotonic() + 10)
    with pytest.raises(OperationTimeoutError, match="given up"):
        guarded(lambda: let_go.wait(10), "owner", time.monotonic())
    let_go.set()


def test_call_that_follows_a_late_one_is_not_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The late call ends by itself while the watchdog breaks it off: the next call has the same socket."""
    breaking, next_began, cut = threading.Event(), threading.Event(), list[bool]()

    def break_socket(owner: object) -> None:
        breaking.set()
        cut.append(next_began.wait(0.3))

    monkeypatch.setattr("pairbus.sdk.watchdog.break_socket", break_socket)

    def ends() -> str:
        assert breaking.wait(10)
        return "in the end"

    def begins() -> str:
        next_began.set()
        return "done"

    assert guarded(ends, "owner", time.monotonic()) == "in the end"
    assert guarded(begins, "owner", time.monotonic() + 10) == "done"
    assert cut and not any(cut)
