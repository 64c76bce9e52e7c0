"""The syphon as a Spark job: what a caller says, checked, and made into a query under a supervisor.

from pairbus.spark import local_session, syphon

spark = local_session("syphon", "local[4]")
drain = syphon(spark, primary="env:CONTOSO", secondary="env:FABRIKAM", journal="/mnt/pairbus", once=True)
drain.wait()
print(drain.progress(), drain.left)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from pairbus.errors import ConfigError, PairbusError
from pairbus.pairing.backlog import queue_path
from pairbus.pairing.options import TtlPolicy, checked_name, primary_name_of
from pairbus.pairing.redriving import Redriving, queue_of_dead_letters
from pairbus.pairing.relay import SyphonSettings, entity_of_dead_letters
from pairbus.spark.connections import Secret
from pairbus.spark.journal import Location
from pairbus.spark.lane import Job
from pairbus.spark.looks import check
from pairbus.spark.rounds import Quotas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.spark.driver_side import DriverSide
    from pairbus.spark.supervisor import SparkSyphon

Folder = str | PathLike[str]
QUOTAS = Quotas()


class SparkGone(PairbusError):
    """The Java process of Spark has ended. Nothing is lost: a new process goes on where this one stopped."""


def syphon(  # noqa: PLR0913 - each is a setting of its own
    spark: SparkSession,
    *,
    primary: str,
    secondary: str,
    journal: Folder,
    primary_name: str | None = None,
    queues: Mapping[str, int | None] | Sequence[str] | None = None,
    backlog_queue_count: int = 10,
    once: bool = False,
    max_messages_per_second: float | None = None,
    ttl_policy: TtlPolicy = "restore",
    missing_destination_grace: float = 900.0,
    checkpoint: Folder | None = None,
    ledger: Folder | None = None,
    ca_file: str | None = None,
    credential: str | None = None,
    quotas: Quotas = QUOTAS,
) -> SparkSyphon:
    """Bring the messages of backlog queues home with Spark. Started when this returns; `wait`, `stop`, `progress`.

    `primary` and `secondary`: where the connection strings stand, on the driver and on every executor: `env:NAME` or
    `@FILE`. Or, with `credential`, the hosts of the namespaces: `default` is DefaultAzureCredential of azure-identity,
    `MODULE:CALLABLE` whatever that function makes, called in each process that connects. `journal`: a folder that all
    hosts share; `docs/spark-syphon.md` says what is in it. `queues`: paths, or paths with the time of their creation in
    milliseconds; without them the backlog queues 0 … `backlog_queue_count`-1.
    With a session of Spark Connect all of these are places on its server, and nothing of them is needed here.
    ConfigError for what is wrong, before any message is touched.
    """
    from pairbus.spark.driver_side import DriverSide

    driver = DriverSide(spark)
    away = Secret.parse(secondary, "secondary", credential)
    home = Secret.parse(primary, "primary", credential)
    if queues is None:
        try:
            name = checked_name(primary_name) if primary_name else primary_name_of(driver.call(authority_of, home))
        except ValueError as error:
            raise ConfigError(str(error)) from None
        queues = [queue_path(name, index) for index in range(backlog_queue_count)]
    settings = SyphonSettings(
        missing_destination_grace_s=missing_destination_grace,
        ttl_policy=ttl_policy,
        max_messages_per_second=max_messages_per_second,
    )
    job = Job(home, away, _location(driver, journal), "", settings, ca_file, _folder(driver, ledger))
    return _start(spark, driver, job, queues, quotas, once=once, checkpoint=checkpoint)


def redrive(  # noqa: PLR0913 - each is a setting of its own
    spark: SparkSession,
    queue: str,
    *,
    source: str,
    journal: Folder,
    to: str | None = None,
    target: str | None = None,
    once: bool = True,
    duplicate_window: float | None = None,
    new_ids: bool = False,
    max_messages_per_second: float | None = None,
    checkpoint: Folder | None = None,
    ledger: Folder | None = None,
    ca_file: str | None = None,
    credential: str | None = None,
    quotas: Quotas = QUOTAS,
) -> SparkSyphon:
    """Send the dead letters of a queue, or of `TOPIC/Subscriptions/NAME`, back to their entity or to another.

    `source` and `target` (another namespace) are given as those of `syphon`. What is refused stays where it is.
    So does what the entity may remember, and would drop as a duplicate: `duplicate_window` says for how many seconds it
    remembers message ids, 0 that it does not; None, which is taken for a week, that it is not known. With `new_ids` it
    goes under another id, and has its own in the application property `x-pairbus-original-message-id`.
    """
    from pairbus.spark.driver_side import DriverSide

    driver = DriverSide(spark)
    origin = Secret.parse(source, "source", credential)
    home = origin if target is None else Secret.parse(target, "target", credential)
    settings = SyphonSettings(max_messages_per_second=max_messages_per_second)
    queue = queue_of_dead_letters(queue)
    entity = to or entity_of_dead_letters(queue)
    letters = Redriving(entity, f"{driver.call(authority_of, origin)}/{queue}", duplicate_window, new_ids)
    job = Job(home, origin, _location(driver, journal), "", settings, ca_file, _folder(driver, ledger), letters)
    return _start(spark, driver, job, [queue], quotas, once=once, checkpoint=checkpoint)


def _start(
    spark: SparkSession,
    driver: DriverSide,
    job: Job,
    queues: Mapping[str, int | None] | Sequence[str],
    quotas: Quotas,
    *,
    once: bool,
    checkpoint: Folder | None,
) -> SparkSyphon:
    from pairbus.spark.supervisor import SparkSyphon

    if spark.conf.get("spark.speculation", "false") == "true":
        raise ConfigError("spark.speculation must be false: a task that runs twice at once would move messages twice")
    known = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues)
    if not known:
        raise ConfigError("there are no queues to drain")
    driver.call(_check, job, list(known))
    syphon = SparkSyphon(
        spark,
        job,
        known,
        quotas
        if quotas.tasks is not None
        else replace(quotas, tasks=driver.call(_slots, spark.conf.get("spark.master", "") or "")),
        once=once,
        checkpoint=str(checkpoint or job.location.checkpoint),
    )
    syphon.start()
    return syphon


def authority_of(secret: Secret) -> str:
    """Return host, or host and port, of a namespace; called where the driver is."""
    return secret.endpoint().authority


def _check(job: Job, queues: list[str]) -> None:
    """Raise ConfigError for what no waiting will heal; called where the driver is."""
    for secret in (job.primary, job.secondary):
        secret.endpoint()
        secret.token_credential()
    check(job, queues)


def _location(driver: DriverSide, journal: Folder) -> Location:
    if "://" in os.fspath(journal):
        raise ConfigError(f"journal: {journal} is not a folder; mount the storage, and give the path of the mount")
    return Location(_absolute(driver, "journal", journal))


def _folder(driver: DriverSide, ledger: Folder | None) -> str | None:
    return None if ledger is None else str(_absolute(driver, "ledger", ledger))


def _absolute(driver: DriverSide, name: str, folder: Folder) -> Path:
    """Return a path that means the same in every process. ConfigError for one that is relative to this one only."""
    if driver.is_elsewhere and not Path(folder).is_absolute():
        raise ConfigError(
            f"{name}: {folder} is relative to a folder of this host; with Spark Connect give an absolute path,"
            " which is one of the server"
        )
    return Path(folder).absolute()


def _slots(master: str) -> int | None:
    """Tasks at once of a local master; None when a cluster decides."""
    if master == "local":
        return 1
    found = re.match(r"local\[(\d+|\*)", master)
    if found is None:
        return None
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1])
