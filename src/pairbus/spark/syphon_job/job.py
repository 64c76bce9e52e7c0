"""The settings of a syphon on Spark, in one form from the arguments of its caller to each of its tasks.

syphon(…), redrive(…)  ──▶  SyphonJob  ──▶  supervisor  ──▶  option of the query (JSON)  ──▶  source  ──▶  tasks
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pairbus.backlog.reader import Reader
from pairbus.errors import ConfigError
from pairbus.spark.connections import Secret
from pairbus.spark.plain_values import from_plain, to_plain
from pairbus.spark.syphon_job.journal import Location
from pairbus.spark.syphon_job.rounds import Quotas
from pairbus.syphon.decide.batch import Opener
from pairbus.syphon.decide.redriving import Redriving
from pairbus.syphon.decide.settings import SyphonSettings

OPTION = "job"


@dataclass(frozen=True, slots=True)
class SyphonJob:
    """A query and its tasks are told this and no more. Spark shows it: it holds no secrets, only their places."""

    primary: Secret
    secondary: Secret
    location: Location
    "Location of the journal."
    settings: SyphonSettings
    queues: dict[str, int | None] = field(default_factory=dict)
    "Queues to drain, each with the time of its creation in milliseconds if that is known."
    quotas: Quotas = field(default_factory=Quotas)
    once: bool = False
    "True for a single drain, which ends when the queues are empty."
    run: str = ""
    "Id of one query of the job."
    ca_file: str | None = None
    ledger: str | None = None
    "Folder of a ledger for every operation."
    redriving: Redriving | None = None
    "Destination of the dead letters of the queues; None: the queues are backlog queues."

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> SyphonJob:
        job: SyphonJob = from_plain(json.loads(options[OPTION]), cls)
        return job

    def to_options(self) -> dict[str, str]:
        """Return the job as options of a query. ConfigError when a setting has another type than it declares."""
        plain = to_plain(self)
        try:
            from_plain(plain, SyphonJob)
        except TypeError as error:
            raise ConfigError(f"a setting of the syphon has the wrong type: {error}") from None
        return {OPTION: json.dumps(plain)}

    @property
    def sub_queue(self) -> Literal["dead-letter"] | None:
        return None if self.redriving is None else "dead-letter"

    def new_opener(self) -> Opener:
        return Reader().unwrap if self.redriving is None else self.redriving.opener(wall_ms)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
