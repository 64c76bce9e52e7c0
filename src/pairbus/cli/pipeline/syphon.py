"""`pairbus syphon`: bring diverted messages home. `pairbus redrive`: the same for the dead letters of any queue."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pairbus.cli.duration_options import duration_option
from pairbus.cli.loop import end_signals, run
from pairbus.cli.namespace_options import ENTRA, KEPT_OFF, CredentialName, Namespaces
from pairbus.cli.pair.options import Primary, PrimaryName, Secondary
from pairbus.cli.pipeline.spark_options import (
    Checkpoint,
    EngineName,
    Journal,
    SparkOptions,
    StorageCredential,
    Tables,
    Tasks,
    WhichEngine,
)
from pairbus.cli.pipeline.spark_place import Master, Remote, SparkPlace, spark_place
from pairbus.cli.trust import CaFile
from pairbus.errors import ConfigError, SparkGone
from pairbus.pairing.options import RANGES


class Ttl(StrEnum):
    restore = "restore"
    deduct = "deduct"


def register(app: typer.Typer) -> None:
    """Add the commands `pairbus syphon` and `pairbus redrive`."""
    app.command(
        epilog=f"""\b
Examples:
  pairbus syphon --primary @contoso.txt --secondary @fabrikam.txt
  pairbus syphon --once --max-messages-per-second 200
  pairbus syphon --metrics 9464
  pairbus syphon --primary-name contoso --secondary @fabrikam.txt --target @spare.txt --once
  pairbus syphon --engine spark --master local[4] --once
  pairbus syphon --engine spark --remote sc://HOST --journal /mnt/pairbus --primary env:CONTOSO --secondary env:FABRIKAM
  pairbus syphon --credential default --primary contoso.servicebus.windows.net --secondary HOST
\b
{KEPT_OFF.format(variables="PAIRBUS_PRIMARY, PAIRBUS_SECONDARY and PAIRBUS_TARGET")} {ENTRA}"""
    )(syphon)
    app.command(
        epilog=f"""\b
Examples:
  pairbus redrive orders --connection-string @contoso.txt
  pairbus redrive orders --to orders-retry --connection-string @contoso.txt
  pairbus redrive orders --new-ids --connection-string @contoso.txt
  pairbus redrive events/Subscriptions/audit --connection-string @contoso.txt
  pairbus redrive orders --namespace contoso.servicebus.windows.net --credential default
\b
{KEPT_OFF.format(variables="PAIRBUS_CONNECTION_STRING and PAIRBUS_TARGET")} {ENTRA}"""
    )(redrive)


def _rate(rate: float | None) -> float | None:
    """Check the rate as the option of the same name does; `nan` passes every comparison with limits."""
    try:
        RANGES["max_messages_per_second"].check("it", rate)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return rate


Rate = Annotated[
    float | None,
    typer.Option(callback=_rate, help="Limit for the syphon; halved for a while when the service throttles."),
]
QueueCount = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=int(RANGES["backlog_queue_count"].most),
        help="Queues 0 … N-1, without asking for a list; needs only Listen and Send.",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        envvar="PAIRBUS_TARGET",
        metavar="CS|HOST",
        help="Drain into this namespace instead, when the primary never returns.",
    ),
]
Host = Annotated[
    str | None,
    typer.Option(metavar="HOST", help="Host of the namespace, with --credential instead of a connection string."),
]
WhichTtl = Annotated[
    Ttl, typer.Option(help="restore: the full time to live starts again; deduct: time in the backlog counts.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every move, pause and cause.")]
Once = Annotated[bool, typer.Option("--once", help="Move the messages that are there when it begins, then end.")]
MetricsPlace = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:]PORT",
        help="Serve GET /metrics for Prometheus. Hosts beyond the loopback need a token in PAIRBUS_METRICS_TOKEN.",
    ),
]
Grace = Annotated[
    float,
    duration_option(
        "--missing-destination-grace",
        help="How long a destination may be missing before its messages are dead-lettered.",
    ),
]
LedgerFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Write a ledger of every operation.")]
Letters = Annotated[
    str, typer.Argument(metavar="ENTITY", help="Queue, or TOPIC/Subscriptions/NAME, whose dead letters to send again.")
]
Source = Annotated[
    str | None,
    typer.Option(
        "--connection-string", envvar="PAIRBUS_CONNECTION_STRING", metavar="CS", help="Connection string, or @FILE."
    ),
]
To = Annotated[str | None, typer.Option(metavar="ENTITY", help="Send them to this entity instead of their own.")]
OtherNamespace = Annotated[
    str | None,
    typer.Option(envvar="PAIRBUS_TARGET", metavar="CS|HOST", help="Send them to this namespace instead of their own."),
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Go on until stopped, instead of ending when the dead letters are sent.")
]
NewIds = Annotated[
    bool,
    typer.Option(
        "--new-ids",
        help="Dead letters that the entity may remember go under another message id;"
        " the old one becomes the application property x-pairbus-original-message-id.",
    ),
]
DuplicateWindow = Annotated[
    float | None,
    duration_option(
        "--duplicate-window",
        help="How long the entity remembers message ids; 0: it does not. Default: the entity is asked, which needs the"
        " Manage claim; if that fails, a week is assumed.",
    ),
]


def syphon(
    primary: Primary = None,
    secondary: Secondary = None,
    target: Target = None,
    primary_name: PrimaryName = None,
    backlog_queue_count: QueueCount = None,
    once: Once = False,
    engine: WhichEngine = EngineName.local,
    master: Master = None,
    remote: Remote = None,
    journal: Journal = None,
    storage_credential: StorageCredential = None,
    tables: Tables = None,
    checkpoint: Checkpoint = None,
    tasks: Tasks = None,
    max_messages_per_second: Rate = None,
    ttl_policy: WhichTtl = Ttl.restore,
    missing_destination_grace: Grace = 900,
    ledger: LedgerFolder = None,
    metrics: MetricsPlace = None,
    credential: CredentialName = None,
    ca_file: CaFile = None,
    verbose: Verbose = False,
) -> None:
    """Move messages from the backlog queues of the secondary to their entities in the primary, until stopped.

    A message is completed in the secondary only after the primary has accepted it. Several syphons may run at once.
    SIGTERM ends a syphon within 20 seconds; no message is left half moved or locked. While the primary cannot be
    reached, the syphon holds no message and tries again after 1, 2, 4 … 120 seconds. With --once the command exits with
    0 when nothing is left, with 1 when messages had to stay, are new or are locked by another receiver, or when it was
    stopped, and says why.

    The command asks the administration API how many messages wait: one request for each hundred queues of the
    secondary, or one for each backlog queue where these are fewer. While messages are moved or held back that is every
    5 seconds on a terminal and every 30 elsewhere, otherwise every 15 minutes, and with --backlog-queue-count never.
    Backlog queues that are created meanwhile are found by a list, and drained too. Without the Manage claim there is no
    list: a link is opened to each of 0 … 9, and to the next ten as long as there are any.
    """
    # Imported when needed: the network takes a third of a second, which other commands should not pay.
    from pairbus.cli.pipeline.pumping import Pumping
    from pairbus.syphon import SyphonSettings

    where = spark_place(master, remote if engine is EngineName.spark else None)
    namespaces, destination = _namespaces(where, credential, ca_file, once=once), None
    backlog = namespaces.side(secondary, "--secondary", "PAIRBUS_SECONDARY")
    if target is not None and primary_name is None and not primary:
        raise typer.BadParameter("whose backlog queues go to --target? Give --primary-name NAME, or --primary CS")
    if target is None or primary_name is None:
        destination = namespaces.side(primary, "--primary", "PAIRBUS_PRIMARY")
    name = name_of(primary_name, None if destination is None else destination.authority)
    if target is not None:
        destination = namespaces.side(target, "--target", "PAIRBUS_TARGET")
    assert destination is not None
    namespaces.check()
    settings = SyphonSettings(
        missing_destination_grace_s=missing_destination_grace,
        ttl_policy=ttl_policy.value,
        max_messages_per_second=max_messages_per_second,
    )
    choice = SparkOptions(
        engine, where, journal, storage_credential, tables, checkpoint, tasks, ledger, ca_file, credential
    )
    choice.check()
    spark = None
    if engine is EngineName.spark:
        to = (target, "PAIRBUS_TARGET") if target is not None else (primary, "PAIRBUS_PRIMARY")
        sides, names = (to, (secondary, "PAIRBUS_SECONDARY")), (backlog.authority, destination.authority)
        spark = choice.start(sides, names, settings, namespaces)
    pumping = Pumping(destination, backlog, settings, ledger, spark, verbose=verbose, metrics=metrics)
    _run(lambda: pumping.syphon(name, backlog_queue_count, once=once), once=once)


def redrive(
    queue: Letters,
    source: Source = None,
    namespace: Host = None,
    to: To = None,
    target: OtherNamespace = None,
    follow: Follow = False,
    new_ids: NewIds = False,
    duplicate_window: DuplicateWindow = None,
    engine: WhichEngine = EngineName.local,
    master: Master = None,
    remote: Remote = None,
    journal: Journal = None,
    storage_credential: StorageCredential = None,
    tables: Tables = None,
    checkpoint: Checkpoint = None,
    tasks: Tasks = None,
    max_messages_per_second: Rate = None,
    ledger: LedgerFolder = None,
    credential: CredentialName = None,
    ca_file: CaFile = None,
    verbose: Verbose = False,
) -> None:
    """Send the dead letters that are there back to their entity, or to another one, then end.

    Messages that are refused stay where they are. So do those that consumers dead-letter again meanwhile, unless
    --follow is given.
    Exits with 0 when nothing is left, with 1 when dead letters had to stay, are new or are locked by somebody else, or
    when it was stopped, and says why.

    An entity that detects duplicates would drop messages that it remembers: a dead letter that came to it within its
    window stays until the window is over, and is counted as left, unless --new-ids is given.
    """
    from pairbus.cli.pipeline.pumping import Pumping
    from pairbus.syphon import SyphonSettings

    where = spark_place(master, remote if engine is EngineName.spark else None)
    namespaces = _namespaces(where, credential, ca_file, once=not follow)
    if namespace is not None:
        source = namespaces.host(namespace, "--namespace")
    origin = namespaces.side(source, "--connection-string", "PAIRBUS_CONNECTION_STRING")
    destination = origin
    if target is not None:
        destination = namespaces.side(target, "--target", "PAIRBUS_TARGET")
    namespaces.check()
    settings = SyphonSettings(max_messages_per_second=max_messages_per_second)
    choice = SparkOptions(
        engine, where, journal, storage_credential, tables, checkpoint, tasks, ledger, ca_file, credential
    )
    choice.check()
    spark = None
    if engine is EngineName.spark:
        back = (source, "PAIRBUS_CONNECTION_STRING")
        sides = ((target, "PAIRBUS_TARGET") if target is not None else back, back)
        names = (origin.authority, *_route(queue, to, destination.authority))
        spark = choice.start(sides, names, settings, namespaces)
    pumping = Pumping(destination, origin, settings, ledger, spark, verbose=verbose)
    _run(
        lambda: pumping.redrive(queue, to, once=not follow, duplicate_window_s=duplicate_window, new_ids=new_ids),
        once=not follow,
    )


def _namespaces(where: SparkPlace, credential: str | None, ca_file: Path | None, *, once: bool) -> Namespaces:
    """Return the maker of the sides of a command: with a Spark Connect server, that server, which has the secrets."""
    if where.remote is None:
        return Namespaces(credential, ca_file)
    from pairbus.cli.pipeline.spark_server import ServerNamespaces
    from pairbus.cli.pipeline.spark_start import APP, again, has_restarted

    try:
        return ServerNamespaces(where.open(APP), credential, ca_file)
    except ConfigError as error:
        if not has_restarted():
            raise
        again(SparkGone(str(error)), once=once)  # it was there before, so it is being restarted


def _route(queue: str, to: str | None, authority: str) -> tuple[str, str, str]:
    """Return (queue whose dead letters go, namespace, destination)."""
    from pairbus.syphon.decide.redriving import entity_of_dead_letters, queue_of_dead_letters

    path = queue_of_dead_letters(queue)
    return path, authority, to or entity_of_dead_letters(path)


def _run(work: Callable[[], Coroutine[Any, Any, bool]], *, once: bool) -> None:
    """Run, and exit with 1 when messages had to stay. When Java dies on Spark, a new process goes on."""

    async def to_the_end() -> bool:
        has_left = await work()
        end_signals()  # the summary is printed
        return has_left

    try:
        left = run(to_the_end())
    except SparkGone as gone:
        from pairbus.cli.pipeline.spark_start import again

        again(gone, once=once)
    if left:
        raise typer.Exit(1)


def name_of(name: str | None, authority: str | None) -> str:
    """Return the first part of the backlog paths: the given one, or that of the primary's host."""
    from pairbus.pairing.options import checked_name, primary_name_of

    try:
        if name is not None:
            return checked_name(name)
        assert authority is not None
        return primary_name_of(authority)
    except ValueError as error:
        raise ConfigError(str(error)) from None
