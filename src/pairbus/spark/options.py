"""The options of `format("servicebus")`: one table, read once, then trusted. docs/spark.md shows the same table.

Names are compared without case, as everywhere in Spark. What is wrong is a ConfigError that names the option, before
anything is connected. The connection string is read once here, where the query is planned, so that a mistake shows at
once; what is kept and travels to the executors is only its place, which they read for themselves.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pairbus.errors import ConfigError
from pairbus.spark.connections import Secret
from pairbus.transport import Carrier, Endpoint
from pairbus.transport.endpoint import TransportKind

Use = Literal["read", "stream", "write"]
DEAD_LETTERS = "/$DeadLetterQueue"
LONG_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table."""

    name: str
    default: str | None
    accepts: str
    "As the documents say it."
    used_by: str
    meaning: str
    low: float | None = None
    high: float | None = None
    words: tuple[str, ...] = ()


OPTIONS = (
    Option("connectionString", "env:PAIRBUS_CONNECTION_STRING", "`env:NAME`, `@FILE`", "all",
           "where the connection string stands, on the driver and on every executor: an environment variable, or a "
           "file. The string itself is refused, because Spark shows options; see [secrets](#secrets)"),
    Option("namespace", None, "host", "all",
           "instead of a connection string, with `credential`: as in `contoso.servicebus.windows.net`"),
    Option("credential", None, "`default`, `MODULE:CALLABLE`", "all",
           "who gives tokens for `namespace`: `DefaultAzureCredential` of azure-identity, or what a function without "
           "arguments returns, called in each process that connects"),
    Option("entity", None, "path", "all",
           "queue, topic (to write) or `TOPIC/Subscriptions/NAME` (to read); also what is given to `load` or `save`. "
           "When writing it goes before the column `entity`, and is needed where there is none"),
    Option("transport", "tcp", "`tcp`, `websocket`", "all", "how to connect", words=("tcp", "websocket")),
    Option("caFile", None, "path", "all",
           "certificates to trust instead of the system's; the file must be on every host"),
    Option("timeoutSeconds", "30", "1 … 600", "all", "how long one operation may take", 1, 600),
    Option("patienceSeconds", "300", "0 … 86400", "all",
           "how long a task goes on while the service is busy (10 s between attempts) or away", 0, 86_400),
    Option("subQueue", None, "`deadletter`", "read, stream", "read the dead-letter queue of the entity",
           words=("deadletter",)),
    Option("sessions", "false", "`true`, `false`", "stream",
           "the queue or subscription has sessions: a task accepts the next available one, reads it, then another",
           words=("true", "false")),
    Option("includeRaw", "false", "`true`, `false`", "read, stream",
           "add the column `raw`: the message as it is encoded", words=("true", "false")),
    Option("partitions", "2", "1 … 1000", "read, stream",
           "how many tasks read in parallel; of a stream, how many receivers", 1, 1000),
    Option("fromSequenceNumber", "0", "0 … 2⁶³-1", "read", "first sequence number to read", 0, LONG_MAX),
    Option("toSequenceNumber", str(LONG_MAX), "0 … 2⁶³-1", "read", "last sequence number to read", 0, LONG_MAX),
    Option("pushFilters", "false", "`true`, `false`", "read",
           "let the source filter by `sequence_number` and `enqueued_time`; read [what it asks of you](#filters) first",
           words=("true", "false")),
    Option("stagingLocation", None, "folder, `abfss://…`, `https://…`", "stream",
           "required: storage that all hosts see, where received messages are kept until Spark has them; a folder, or "
           "a path in [Azure Blob or ADLS Gen2](#storage)"),
    Option("storageCredential", None, "`env:NAME`, `@FILE`, `default`, `MODULE:CALLABLE`", "stream",
           "what opens a stagingLocation in Azure, by where it stands; without it `env:PAIRBUS_STORAGE` if that is "
           "set on the driver, else `default`"),
    Option("maxMessagesPerBatch", "10000", "1 … 1000000", "stream", "messages in a micro-batch at most", 1, 1_000_000),
    Option("idlePollSeconds", "5", "0.1 … 900", "stream",
           "pause between two looks at an empty queue; every look is a billed operation", 0.1, 900),
    Option("stageRetentionSeconds", "86400", "0 … 31536000", "stream",
           "how long a staged file stays after its micro-batch was committed", 0, 31_536_000),
)  # fmt: skip
_BY_NAME = {option.name.lower(): option for option in OPTIONS}
_ALIASES = {"path": "entity"}  # what Spark calls the argument of load, save and start
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "mergeschema"})


@dataclass(frozen=True, slots=True)
class Options:
    """What the options say. It holds no key and no signature, only where they stand."""

    secret: Secret
    transport: TransportKind
    host: str
    address: str
    "host:port, for errors."
    entity: str | None
    sub_queue: str | None
    sessions: bool
    "Messages are received session by session; a dead-letter queue has none."
    ca_file: str | None
    timeout_s: float
    patience_s: float
    include_raw: bool
    partitions: int
    from_sequence_number: int
    to_sequence_number: int
    push_filters: bool
    staging_location: str | None
    storage_credential: str | None
    max_messages_per_batch: int
    idle_poll_s: float
    stage_retention_s: float

    @classmethod
    def parse(cls, given: Mapping[str, str], use: Use) -> Options:
        """Read and check everything; ConfigError names the option, its value and what would be right."""
        values = _known(given)
        secret = _secret(values)
        transport: TransportKind = "websocket" if _text(values, "transport") == "websocket" else "tcp"
        endpoint = secret.endpoint(transport)
        secret.token_credential()
        options = cls(
            secret=secret,
            transport=transport,
            host=endpoint.host,
            address=f"{endpoint.host}:{endpoint.port}",
            entity=_entity(values, endpoint, use),
            sub_queue=_text(values, "subQueue"),
            sessions=_text(values, "sessions") == "true" and _text(values, "subQueue") is None,
            ca_file=_text(values, "caFile"),
            timeout_s=_number(values, "timeoutSeconds"),
            patience_s=_number(values, "patienceSeconds"),
            include_raw=_text(values, "includeRaw") == "true",
            partitions=_whole(values, "partitions"),
            from_sequence_number=_whole(values, "fromSequenceNumber"),
            to_sequence_number=_whole(values, "toSequenceNumber"),
            push_filters=_text(values, "pushFilters") == "true",
            staging_location=_text(values, "stagingLocation"),
            storage_credential=_text(values, "storageCredential"),
            max_messages_per_batch=_whole(values, "maxMessagesPerBatch"),
            idle_poll_s=_number(values, "idlePollSeconds"),
            stage_retention_s=_number(values, "stageRetentionSeconds"),
        )
        if use == "stream" and options.staging_location is None:
            raise ConfigError(f"option stagingLocation is required to read a stream: {_row('stagingLocation').meaning}")
        return options

    @property
    def read_path(self) -> str:
        """What a receiver or a peek asks for."""
        assert self.entity is not None, "reads have an entity: parse has checked it"
        return self.entity + (DEAD_LETTERS if self.sub_queue else "")

    def carrier(self) -> Carrier:
        """A connection of its own for the event loop that runs now; the secret is read now, on this host."""
        endpoint = self.secret.endpoint(self.transport)
        credential = self.secret.token_credential()
        return Carrier(endpoint, credential=credential, ssl=self.ca_file, timeout_s=self.timeout_s)


def _row(name: str) -> Option:
    return _BY_NAME[name.lower()]


def _known(given: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in given.items():
        key = name.lower()
        if key in _SPARKS_OWN:
            continue
        option = _BY_NAME.get(_ALIASES.get(key, key))
        if option is None:
            near = difflib.get_close_matches(key, _BY_NAME, n=1, cutoff=0.5)
            hint = f"; did you mean {_BY_NAME[near[0]].name}?" if near else ""
            raise ConfigError(f"option {name} is not known to format servicebus{hint}")
        if values.setdefault(option.name, value) != value:
            raise ConfigError(f"option {option.name} is given twice (path is the same as entity)")
    return values


def _text(values: Mapping[str, str], name: str) -> str | None:
    option = _row(name)
    value = values.get(name, option.default)
    if value is None or not option.words:
        return value
    if value.lower() not in option.words:
        raise ConfigError(f"option {name} must be {' or '.join(option.words)}, not {value!r}")
    return value.lower()


def _number(values: Mapping[str, str], name: str) -> float:
    return _ranged(name, values, float)


def _whole(values: Mapping[str, str], name: str) -> int:
    return int(_ranged(name, values, int))


def _ranged(name: str, values: Mapping[str, str], kind: type[float] | type[int]) -> float:
    option = _row(name)
    text = values.get(name, option.default or "")
    assert option.low is not None and option.high is not None
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not option.low <= value <= option.high:
        noun = "a whole number" if kind is int else "a number"
        raise ConfigError(f"option {name} must be {noun} in {option.accepts}, not {text!r}")
    return value


def _entity(values: Mapping[str, str], endpoint: Endpoint, use: Use) -> str | None:
    entity = (values.get("entity") or endpoint.entity_path or "").strip("/")
    if not entity and use != "write":
        raise ConfigError("option entity is required: the queue or TOPIC/Subscriptions/NAME to read")
    if entity.lower().endswith(DEAD_LETTERS.lower()):
        raise ConfigError(f"option entity is {entity!r}: name the entity alone, and give option subQueue=deadletter")
    if not entity:
        return None
    try:
        return endpoint.path(entity)
    except ConfigError as error:
        raise ConfigError(f"option entity: {error}") from None


def _secret(values: Mapping[str, str]) -> Secret:
    host, credential = values.get("namespace"), values.get("credential")
    if host is None and credential is None:
        text = values.get("connectionString") or _row("connectionString").default or ""
        return Secret.parse(text, "option connectionString")
    if host is None or credential is None:
        raise ConfigError("options namespace and credential go together: give both, or connectionString")
    if values.get("connectionString"):
        raise ConfigError("options connectionString and namespace exclude each other")
    return Secret.parse(host, "option credential", credential)
