"""Long tasks: the error of each is reported when it ends, and somebody acts."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.transport import tasks
from pairbus.transport.connection.shared_work import SharedWork
from pairbus.transport.connection.steps import Hearing
from pairbus.transport.errors import ConnectionLost
from pairbus.transport.tasks import Tasks, kept


async def fail() -> None:
    raise LookupError("a bug")


async def test_error_of_a_task_is_reported_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not when the garbage collector finds the task, which may be never."""
    heard: list[BaseException] = []
    started = Tasks()
    task = started.start(fail(), "the work", failed=heard.append)
    await started.ended()
    assert [str(error) for error in heard] == ["a bug"] and list(started) == [] and task.done()
    [record] = caplog.records
    assert record.getMessage() == "the work ended: LookupError: a bug" and record.exc_info is not None


async def test_cancelled_task_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    started, heard = Tasks(), list[BaseException]()
    started.start(asyncio.sleep(60), "the work", failed=heard.append)
    started.cancel()
    await started.ended()
    assert caplog.records == [] and heard == []


async def test_kept_work_begins_again_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "BEGIN_AGAIN_S", 0.0)
    runs: list[int] = []

    async def work() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise LookupError("a bug")

    await kept(work, "the work")
    assert len(runs) == 3 and caplog.text.count("the work ended: a bug; it begins again") == 2


@pytest.mark.parametrize("error", [LookupError("a bug"), ConnectionLost("no network")], ids=["bug", "network"])
async def test_bug_in_an_opening_whose_callers_left_is_reported(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """A lost network is an answer that nobody needs any more; a bug must be heard."""
    shared, may_end = SharedWork[str]("somewhere"), asyncio.Event()

    async def work(hearing: Hearing) -> None:
        await may_end.wait()
        raise error

    caller = asyncio.create_task(shared.run("key", work, "the link"))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    may_end.set()
    await asyncio.wait([shared.begin("key", work)])
    assert ("somewhere: an opening ended: LookupError: a bug" in caplog.text) == isinstance(error, LookupError)
