"""The syphon as a Spark job: makes a `SparkSyphon` from the arguments of a caller.

from pairbus.spark import local_session, syphon

spark = local_session("syphon", "local[4]")
drain = syphon(spark, primary="env:CONTOSO", secondary="env:FABRIKAM", journal="/mnt/pairbus", once=True)
drain.wait()
print(drain.progress(), drain.left)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from pairbus.errors import ConfigError
from pairbus.pairing.options import TtlPolicy, checked_name, primary_name_of
from pairbus.pairing.rotation import queue_path
from pairbus.spark.connections import Secret
from pairbus.spark.defaults import is_local_master, state_folder
from pairbus.spark.storage.locations import is_url
from pairbus.spark.storage.opening import check_access
from pairbus.spark.storage.secret import StorageSecret
from pairbus.spark.syphon_job.job import SyphonJob
from pairbus.spark.syphon_job.journal import Location
from pairbus.spark.syphon_job.rounds import Quotas
from pairbus.syphon.decide.redriving import Redriving, entity_of_dead_letters, queue_of_dead_letters
from pairbus.syphon.decide.settings import SyphonSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.spark.driver_side import DriverSide
    from pairbus.spark.syphon_job.supervisor import SparkSyphon

logger = logging.getLogger("pairbus.spark")

Folder = str | PathLike[str]
BACKLOG_QUEUES = 10
QUOTAS = Quotas()


def syphon(  # noqa: PLR0913 - users write the options as keywords
    spark: SparkSession,
    *,
    primary: str,
    secondary: str,
    journal: Folder | None = None,
    primary_name: str | None = None,
    queues: Mapping[str, int | None] | Sequence[str] | None = None,
    backlog_queue_count: int | None = None,
    once: bool = False,
    max_messages_per_second: float | None = None,
    ttl_policy: TtlPolicy = "restore",
    missing_destination_grace: float = 900.0,
    checkpoint: Folder | None = None,
    ledger: Folder | None = None,
    ca_file: str | None = None,
    credential: str | None = None,
    storage_credential: str | None = None,
    quotas: Quotas = QUOTAS,
) -> SparkSyphon:
    """Bring the messages of backlog queues home with Spark. The syphon is started when this returns; use `wait`,
    `stop`, `progress`.

    `primary` and `secondary`: places of the connection strings, on the driver and on every executor: `env:NAME` or
    `@FILE`. Or, with `credential`, the hosts of the namespaces: `default` is DefaultAzureCredential of azure-identity,
    `MODULE:CALLABLE` a function that makes a credential, called in each process that connects. `journal`: a folder that
    all hosts share, or a path in Azure Blob or ADLS Gen2 (`abfss://…`, `https://…`), which `storage_credential` opens;
    such a path needs a `checkpoint` on a cluster. The default on a local master is a folder in the user's state folder.
    `docs/spark-syphon.md` describes its contents. `queues`: paths, or paths with the time of their creation in
    milliseconds; without them the backlog queues 0 … `backlog_queue_count`-1; without both 0 … 9. Backlog queues that
    are created later are found where no count is given, and with `queues` only where the `primary_name` is given too.
    With a session of Spark Connect all of these are places on its server, and none of them is needed here. ConfigError
    for wrong arguments, before any message is touched.
    """
    from pairbus.spark.driver_side import DriverSide
    from pairbus.spark.syphon_job.supervisor import SparkSyphon

    driver = DriverSide(spark)
    secondary_secret = Secret.parse(secondary, "secondary", credential)
    primary_secret = Secret.parse(primary, "primary", credential)
    grows = primary_name
    if queues is None:
        try:
            name = (
                checked_name(primary_name)
                if primary_name
                else primary_name_of(driver.call(authority_of, primary_secret))
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        queues = [queue_path(name, index) for index in range(backlog_queue_count or BACKLOG_QUEUES)]
        grows = name
    settings = SyphonSettings(
        missing_destination_grace_s=missing_destination_grace,
        ttl_policy=ttl_policy,
        max_messages_per_second=max_messages_per_second,
    )
    names = (
        (driver.call(authority_of, secondary_secret), driver.call(authority_of, primary_secret))
        if journal is None
        else ()
    )
    location = _location(spark, driver, journal, storage_credential, names)
    job = SyphonJob(
        primary_secret,
        secondary_secret,
        location,
        settings,
        queues=dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues),
        quotas=quotas,
        once=once,
        ca_file=ca_file,
        ledger=_folder(driver, ledger),
    )
    grows = None if backlog_queue_count else grows
    return SparkSyphon(spark, job, checkpoint=checkpoint, primary_name=grows).start()


def redrive(  # noqa: PLR0913 - users write the options as keywords
    spark: SparkSession,
    queue: str,
    *,
    source: str,
    journal: Folder | None = None,
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
    storage_credential: str | None = None,
    quotas: Quotas = QUOTAS,
) -> SparkSyphon:
    """Send the dead letters of a queue, or of `TOPIC/Subscriptions/NAME`, back to their entity or to another.

    `source` and `target` (another namespace) are given like the namespaces of `syphon`. Refused messages stay where
    they are. So do messages whose ids the entity may remember, because it would drop them as duplicates:
    `duplicate_window` says for how many seconds it remembers message ids; 0: it does not; None: not known, taken as a
    week. With `new_ids` such a message is sent under a new id, and keeps its own in the application property
    `x-pairbus-original-message-id`.
    """
    from pairbus.spark.driver_side import DriverSide
    from pairbus.spark.syphon_job.supervisor import SparkSyphon

    driver = DriverSide(spark)
    origin = Secret.parse(source, "source", credential)
    destination = origin if target is None else Secret.parse(target, "target", credential)
    settings = SyphonSettings(max_messages_per_second=max_messages_per_second)
    queue = queue_of_dead_letters(queue)
    entity = to or entity_of_dead_letters(queue)
    authority = driver.call(authority_of, origin)
    letters = Redriving(entity, f"{authority}/{queue}", duplicate_window, new_ids)
    names = (authority, queue, driver.call(authority_of, destination), entity) if journal is None else ()
    location = _location(spark, driver, journal, storage_credential, names)
    job = SyphonJob(
        destination,
        origin,
        location,
        settings,
        queues={queue: None},
        quotas=quotas,
        once=once,
        ca_file=ca_file,
        ledger=_folder(driver, ledger),
        redriving=letters,
    )
    return SparkSyphon(spark, job, checkpoint=checkpoint).start()


def authority_of(secret: Secret) -> str:
    """Return host, or host and port, of a namespace; called where the driver is."""
    return secret.endpoint().authority


def _location(
    spark: SparkSession, driver: DriverSide, journal: Folder | None, credential: str | None, names: Sequence[str]
) -> Location:
    if journal is None:
        if not is_local_master(spark.conf.get("spark.master", None)):
            raise ConfigError(
                "journal: Spark does not run on a local master: give a folder that all its hosts share, or a path in"
                " Azure Blob or ADLS Gen2"
            )
        journal = driver.call(default_journal, *names)
        logger.warning("the journal is in %s", journal)
    return locate(driver, journal, credential)


def locate(driver: DriverSide, journal: Folder, credential: str | None) -> Location:
    """Read where a journal is, as `location_of` does where the driver is."""
    text = os.fspath(journal)
    return driver.call(location_of, text if is_url(text) else str(absolute(driver, "journal", text)), credential)


def location_of(journal: Folder, credential: str | None) -> Location:
    """Read where a journal is. ConfigError when it cannot be used; a folder is checked when it is prepared."""
    text = os.fspath(journal)
    if not is_url(text):
        return Location(Path(text).absolute())
    secret = StorageSecret.parse(credential, "storage_credential")
    location = Location(text, secret.source)
    try:
        check_access(location.storage)
    except ConfigError as error:
        raise ConfigError(f"journal: {error}") from None
    except OSError as error:
        raise ConfigError(f"journal: {text} cannot be used: {error}") from None
    return location


def default_journal(*names: str) -> Path:
    """Return the journal's folder on one machine for a source and a destination."""
    return state_folder("journal", *names)


def _folder(driver: DriverSide, ledger: Folder | None) -> str | None:
    return None if ledger is None else str(absolute(driver, "ledger", ledger))


def absolute(driver: DriverSide, name: str, folder: Folder) -> Path:
    """Return a path that means the same in every process. ConfigError for a path that is relative to this process."""
    if driver.is_elsewhere and not Path(folder).is_absolute():
        raise ConfigError(
            f"{name}: {folder} is relative to a folder of this host; with Spark Connect give an absolute path,"
            " which is one of the server"
        )
    return Path(folder).absolute()
