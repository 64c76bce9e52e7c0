"""The options of `format("servicebus")`, read once, then trusted. `option_table.py` has the table.

Names are compared without case, as everywhere in Spark. An error is a ConfigError that names the option, before any
connection is opened. The connection string is read once here, where the query is planned, so that a mistake is found at
once; only its place is kept and sent to the executors, which read it themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pairbus.errors import ConfigError
from pairbus.spark import databricks
from pairbus.spark.connections import Borrowed, Secret
from pairbus.spark.defaults import folder_name, runs_on_local_master, state_folder
from pairbus.spark.option_table import BY_NAME, LONG_MAX, OPTIONS
from pairbus.spark.option_values import LOST_IN_TABLES, OptionValues, is_within, refuse_tables
from pairbus.transport import Endpoint
from pairbus.transport.connection.endpoint import TransportKind

__all__ = ["LONG_MAX", "OPTIONS", "Options", "Use", "refuse_tables"]

Use = Literal["read", "stream", "write"]
DEAD_LETTERS = "/$DeadLetterQueue"
_STAGES = ("stagingLocation", "storageCredential", "stageRetentionSeconds")
"Options of streams that receive."


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options. They hold no key and no signature, only the places of these."""

    secret: Secret
    transport: TransportKind
    host: str
    address: str
    "host:port, for errors."
    entity: str | None
    "Entity to read or to write; None when several are read, or rows name theirs."
    entities: tuple[str, ...]
    "Entities to read, at least one unless there is a pattern."
    entity_pattern: str | None
    sub_queue: str | None
    removes: bool
    "True for a stream that receives; False for one that peeks."
    sessions: bool
    "True when messages are received session by session; a dead-letter queue has no sessions."
    session: str | None
    "The one session to read; None: all messages."
    ca_file: str | None
    timeout_s: float
    patience_s: float
    include_raw: bool
    plain_properties: bool
    partitions: int
    from_sequence_number: int
    to_sequence_number: int
    push_filters: bool
    starting: int | Literal["latest"] | tuple[tuple[str, int], ...]
    "Start of a stream that peeks: a sequence number, after the last message, or a number for each entity."
    staging_location: str | None
    storage_credential: str | None
    staging_is_default: bool
    max_messages_per_batch: int
    max_bytes_per_batch: int | None
    idle_poll_s: float
    stage_retention_s: float

    @classmethod
    def parse(cls, user_options: Mapping[str, str], use: Use) -> Options:
        """Read and check all options; ConfigError names the option, its value and what would be right."""
        values = OptionValues(user_options, use)
        secret = _secret(values)
        transport: TransportKind = "websocket" if values.text("transport") == "websocket" else "tcp"
        try:
            endpoint = secret.endpoint(transport)
        except ConfigError as error:
            if values.any_given:
                raise
            raise ConfigError(f"{error}. If this is a table: {LOST_IN_TABLES}") from None
        secret.token_credential()
        entities = _entities(values, endpoint, use)
        options = cls(
            secret=secret,
            transport=transport,
            host=endpoint.host,
            address=f"{endpoint.host}:{endpoint.port}",
            entity=entities[0] if len(entities) == 1 else None,
            entities=entities,
            entity_pattern=values.user_value("entityPattern"),
            sub_queue=values.text("subQueue"),
            removes=values.text("mode") == "receive",
            sessions=_sessions(values),
            session=values.user_value("session"),
            ca_file=values.text("caFile"),
            timeout_s=values.number("timeoutSeconds"),
            patience_s=values.number("patienceSeconds"),
            include_raw=values.flag("includeRaw"),
            plain_properties=values.text("propertiesAs") == "string",
            partitions=values.whole("partitions"),
            from_sequence_number=values.whole("fromSequenceNumber"),
            to_sequence_number=values.whole("toSequenceNumber"),
            push_filters=values.flag("pushFilters"),
            starting=_starting(values),
            staging_location=values.user_value("stagingLocation"),
            staging_is_default=False,
            storage_credential=values.user_value("storageCredential"),
            max_messages_per_batch=values.whole("maxMessagesPerBatch"),
            max_bytes_per_batch=values.whole("maxBytesPerBatch") if "maxBytesPerBatch" in values else None,
            idle_poll_s=values.number("idlePollSeconds"),
            stage_retention_s=values.number("stageRetentionSeconds"),
        )
        if use != "stream":
            return options
        _check_stream(values, options)
        return options._staged() if options.removes and options.staging_location is None else options

    def _staged(self) -> Options:
        """Return the options with the default of stagingLocation, where Spark runs on this machine alone."""
        if not runs_on_local_master():
            raise ConfigError(
                f"option stagingLocation is required to read a stream: {BY_NAME['staginglocation'].meaning}"
            )
        if not self.reads_several:
            return replace(self, staging_location=self._default_location(*self.entities), staging_is_default=True)
        # Earlier releases named the folder of several entities by the whole list, or by the pattern.
        earlier = self._default_location(*([self.entity_pattern] if self.entity_pattern else sorted(self.entities)))
        return replace(self, staging_location=earlier if Path(earlier).is_dir() else None, staging_is_default=True)

    def _default_location(self, *names: str) -> str:
        parts = [part for part in (*names, self.sub_queue, self.session) if part]
        return str(state_folder("staging", self.address, *parts))

    @property
    def reads_several(self) -> bool:
        """True when offsets and stages are kept for each entity: also for a pattern that one entity matches."""
        return self.entity_pattern is not None or len(self.entities) > 1

    def for_entity(self, entity: str) -> Options:
        """Return the options of one of several entities, with a staging location of its own: below the common one, or
        the default of that entity, which is the same in every list."""
        location = self.staging_location
        if location is not None:
            location = f"{location.rstrip('/')}/{folder_name(entity)}"
        elif self.staging_is_default:
            location = self._default_location(entity)
        return replace(self, entity=entity, entities=(entity,), entity_pattern=None, staging_location=location)

    def start_of(self, entity: str) -> int | None:
        """Return the sequence number with which a stream that peeks begins; None: after the last message."""
        if isinstance(self.starting, tuple):
            return dict(self.starting).get(entity, 0)
        return None if self.starting == "latest" else self.starting

    @property
    def read_path(self) -> str:
        """Path for a receiver or a peek."""
        assert self.entity is not None, "reads have an entity: parse has checked it"
        return self.entity + (DEAD_LETTERS if self.sub_queue else "")

    def borrowed(self) -> Borrowed:
        """Return the process's connection to the namespace; the secret is read now, on this host."""
        return Borrowed(self.secret, self.ca_file, transport=self.transport, timeout_s=self.timeout_s)


# ── which entities ──


def _entities(values: OptionValues, endpoint: Endpoint, use: Use) -> tuple[str, ...]:
    entity, topic, pattern = values.user_value("entity"), values.user_value("topic"), values.user_value("entityPattern")
    subscription = values.user_value("subscription")
    if sum(one is not None for one in (entity, topic, pattern)) > 1:
        raise ConfigError("options entity, topic and entityPattern exclude each other: give one of them")
    if subscription is not None and topic is None:
        raise ConfigError("option subscription needs option topic, whose subscription it is")
    if pattern is not None:
        return ()
    if topic is not None:
        if use != "write" and subscription is None:
            raise ConfigError("option topic: a topic itself cannot be read; give option subscription too")
        entity = topic if use == "write" else f"{topic.strip('/')}/Subscriptions/{subscription}"
    text = entity or endpoint.entity_path or ""
    paths = dict.fromkeys(path for path in (one.strip().strip("/") for one in text.split(",")) if path)
    if not paths and use != "write":
        raise ConfigError(
            "option entity is required: the queue or TOPIC/Subscriptions/NAME to read. If this is a table:"
            f" {LOST_IN_TABLES}"
        )
    if len(paths) > 1 and use == "write":
        raise ConfigError(f"option entity names {len(paths)} entities: a write goes to one, or to those of the rows")
    return tuple(_entity(path, endpoint) for path in paths)


def _entity(path: str, endpoint: Endpoint) -> str:
    if path.lower().endswith(DEAD_LETTERS.lower()):
        raise ConfigError(f"option entity is {path!r}: name the entity alone, and give option subQueue=deadletter")
    try:
        return endpoint.path(path)
    except ConfigError as error:
        raise ConfigError(f"option entity: {error}") from None


def _sessions(values: OptionValues) -> bool:
    session, dead = values.user_value("session"), values.text("subQueue") is not None
    if session is None:
        return values.flag("sessions") and not dead
    if dead:
        raise ConfigError("option session: a dead-letter queue has no sessions; filter by the column session_id")
    if "sessions" in values and not values.flag("sessions"):
        raise ConfigError("option session names a session, and option sessions says that there are none")
    if len(session) > 128:
        raise ConfigError(f"option session must be a session id of at most 128 characters, not {len(session)}")
    return True


# ── streams ──


def _starting(values: OptionValues) -> int | Literal["latest"] | tuple[tuple[str, int], ...]:
    if "startingSequenceNumber" in values:
        if "startingOffsets" in values:
            raise ConfigError("options startingOffsets and startingSequenceNumber exclude each other")
        return values.whole("startingSequenceNumber")
    text = (values.text("startingOffsets") or "").strip()
    if text.lower() == "earliest":
        return 0
    return "latest" if text.lower() == "latest" else _starting_numbers(text)


def _starting_numbers(text: str) -> tuple[tuple[str, int], ...]:
    problem = ConfigError(
        "option startingOffsets must be earliest, latest, or JSON with a sequence number for each entity, as in"
        f' {{"orders": 5000}}, not {text!r}'
    )
    try:
        numbers = json.loads(text)
    except ValueError:
        raise problem from None
    row = BY_NAME["startingsequencenumber"]
    if not isinstance(numbers, dict) or not all(type(one) is int and is_within(row, one) for one in numbers.values()):
        raise problem
    return tuple(sorted(numbers.items()))


def _check_stream(values: OptionValues, options: Options) -> None:
    """Refuse options that have no meaning for this kind of stream, with a hint."""
    loss = values.text("failOnDataLoss")
    if options.removes:
        if options.starting != 0:
            raise ConfigError(
                "options startingOffsets and startingSequenceNumber: a stream that receives begins with the first"
                " message of the queue, always; mode=peek can begin elsewhere"
            )
        if loss == "false":
            raise ConfigError(
                "option failOnDataLoss=false: a stream that receives loses nothing and so has nothing to pass over;"
                " leave the option out"
            )
        return
    for name in _STAGES:
        if values.user_value(name) is not None:
            raise ConfigError(
                f"option {name}: a stream with mode=peek removes nothing and keeps no stages; leave it out"
            )
    if loss == "true":
        raise ConfigError(
            "option failOnDataLoss=true cannot be promised with mode=peek: others may remove messages before they are"
            " peeked, and nothing tells; give false, or use a stream that receives"
        )
    if values.flag("sessions") and options.session is None:
        raise ConfigError("option sessions: a peek sees the messages of all sessions, so mode=peek does not need it")
    if isinstance(options.starting, tuple) and options.entities:
        for entity, _ in options.starting:
            if entity not in options.entities:
                raise ConfigError(f"option startingOffsets names {entity!r}, which option entity does not")


# ── who asks ──


def _secret(values: OptionValues) -> Secret:
    host, credential = values.user_value("namespace"), values.user_value("credential")
    service_credential = values.user_value("databricks.serviceCredential")
    if service_credential is not None:
        if credential is not None:
            raise ConfigError("options credential and databricks.serviceCredential exclude each other")
        credential = databricks.credential_name(service_credential)
    if host is None and credential is None:
        text = values.user_value("connectionString") or BY_NAME["connectionstring"].default or ""
        return Secret.parse(text, "option connectionString")
    if host is None or credential is None:
        raise ConfigError("options namespace and credential go together: give both, or connectionString")
    if values.user_value("connectionString"):
        raise ConfigError("options connectionString and namespace exclude each other")
    return Secret.parse(host, "option credential", credential)
