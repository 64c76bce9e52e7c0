"""Runs long verbs as jobs on the server: they report their progress, and can be cancelled.

A job that is cancelled, or whose dashboard ends, leaves no message locked and loses none: the verbs of
`pairbus.explorer` promise that. Jobs are not stored: the next dashboard does not know them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from pairbus.errors import ConfigError, EntityNotFound, PairbusError

logger = logging.getLogger("pairbus.dashboard")

RUNNING_MAX = 8
KEPT_MAX = 50
TELL_S = 0.25  # between two reports of one job

Tell = Callable[[str, Any], None]


class VerbRun:
    """One run of a verb."""

    def __init__(self, number: int, verb: str, namespace: str, entity: str, tell: Tell) -> None:
        self.number = number
        self.state = "running"
        self.is_complete = True
        "False: messages that were asked for are left, or could not be completed; the job then ends as incomplete."
        self.counts: dict[str, Any] = {}
        self._named = {"verb": verb, "namespace": namespace, "entity": entity}
        self._tell = tell
        self._told_s = 0.0
        self.task: asyncio.Task[None] | None = None

    def as_json(self) -> dict[str, Any]:
        return {"number": self.number, "state": self.state, **self._named, **self.counts}

    def count(self, **counts: Any) -> None:
        """Note the counts, and report them from time to time."""
        self.counts |= {name: value for name, value in counts.items() if value is not None}
        now = asyncio.get_running_loop().time()
        if now - self._told_s >= TELL_S:
            self._told_s = now
            self._tell("job", self.as_json())

    def end(self, state: str, **counts: Any) -> None:
        self.state = state
        self.counts |= counts
        self._tell("job", self.as_json())


Work = Callable[[VerbRun], Awaitable[None]]


class Jobs:
    """Jobs of one page: those that run, and the last that ended."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._jobs: dict[int, VerbRun] = {}
        self._last = 0

    def begin(self, verb: str, namespace: str, entity: str, work: Work, total: int | None = None) -> VerbRun:
        """Start a job. `total`: messages that it is expected to handle. ConfigError when too many run."""
        running = [job for job in self._jobs.values() if job.state == "running"]
        if len(running) >= RUNNING_MAX:
            raise ConfigError(f"{RUNNING_MAX} jobs run already; wait for one, or cancel one")
        self._last += 1
        job = VerbRun(self._last, verb, namespace, entity, self._tell)
        job.counts |= {} if total is None else {"total": total}
        self._jobs[job.number] = job
        while len(self._jobs) > KEPT_MAX:
            del self._jobs[next(number for number, one in self._jobs.items() if one.state != "running")]
        job.task = asyncio.get_running_loop().create_task(self._run(job, work))
        self._tell("job", job.as_json())
        return job

    def list(self) -> list[dict[str, Any]]:
        return [job.as_json() for job in self._jobs.values()]

    def get(self, number: int) -> VerbRun:
        job = self._jobs.get(number)
        if job is None:
            raise EntityNotFound(f"there is no job {number}")
        return job

    def cancel(self, number: int) -> VerbRun:
        job = self.get(number)
        if job.task is not None:
            job.task.cancel()
        return job

    async def close(self) -> None:
        """Cancel all jobs, and wait until they have given back their messages."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: VerbRun, work: Work) -> None:
        try:
            await work(job)
        except PairbusError as error:
            job.end("failed", error=str(error))
        except asyncio.CancelledError:
            job.end("cancelled")
            raise
        except BaseException as error:
            logger.error("a job failed", exc_info=error)
            job.end("failed", error=f"{type(error).__name__}: {error}")
            raise
        else:
            job.end("done" if job.is_complete else "incomplete")
