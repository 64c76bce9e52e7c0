"""The table of options of `format("servicebus")`, and the names that other connectors have for them.

docs/spark-options.md shows both tables; a test compares every cell.
"""

from __future__ import annotations

from dataclasses import dataclass

LONG_MAX = (1 << 63) - 1
_FLAG = ("true", "false")


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table."""

    name: str
    default: str | None
    accepts: str
    "Accepted values, as the documents say it."
    used_by: str
    meaning: str
    low: float | None = None
    high: float | None = None
    words: tuple[str, ...] = ()

    def is_used_to(self, use: str) -> bool:
        """Tell whether the option has a meaning for `read`, `stream` or `write`."""
        return self.used_by == "all" or use in self.used_by.split(", ")


OPTIONS = (
    Option("connectionString", "env:PAIRBUS_CONNECTION_STRING", "`env:NAME`, `@FILE`", "all",
           "where the connection string is kept, on the driver and on every executor: an environment variable, or a "
           "file. The string itself is refused, because Spark shows options; see [secrets](spark-clusters.md#secrets)"),
    Option("namespace", None, "host", "all",
           "instead of a connection string, with `credential`: as in `contoso.servicebus.windows.net`"),
    Option("credential", None, "`default`, `MODULE:CALLABLE`", "all",
           "what gives tokens for `namespace`: `DefaultAzureCredential` of azure-identity, or the object that a "
           "function without arguments returns. The function is called in each process that connects"),
    Option("databricks.serviceCredential", None, "name", "all",
           "instead of `credential`, on Databricks: a service credential of the Unity Catalog"),
    Option("entity", None, "path, or paths with commas", "all",
           "queue, topic (to write) or `TOPIC/Subscriptions/NAME` (to read); a path that is given to `load` or "
           "`save` is this option too. [Several](spark.md#several-entities) entities can only be read. When writing, "
           "the option is used instead of the column `entity`, and is needed where that column is missing"),
    Option("topic", None, "name", "all", "a topic to write to; with `subscription`, what to read"),
    Option("subscription", None, "name", "read, stream", "the subscription of `topic` to read"),
    Option("entityPattern", None, "pattern", "read, stream",
           "instead of `entity`: all queues and subscriptions whose path matches, as in `orders-*`; needs the Manage "
           "claim, because it lists them"),
    Option("transport", "tcp", "`tcp`, `websocket`", "all", "how to connect", words=("tcp", "websocket")),
    Option("caFile", None, "path", "all",
           "certificates to trust instead of the system's; the file must be on every host"),
    Option("timeoutSeconds", "30", "1 … 600", "all", "how long one operation may take", 1, 600),
    Option("patienceSeconds", "300", "0 … 86400", "all",
           "how long a task tries again while the service is busy (10 s between attempts) or away", 0, 86_400),
    Option("subQueue", None, "`deadletter`", "read, stream", "read the dead-letter queue of the entity",
           words=("deadletter",)),
    Option("mode", "receive", "`receive`, `peek`", "stream",
           "`receive`: messages are removed from the queue, each enters Spark once. `peek`: they "
           "[stay](spark.md#a-stream-that-removes-nothing), and the offset is a sequence number",
           words=("receive", "peek")),
    Option("sessions", "false", "`true`, `false`", "stream",
           "the queue or subscription has sessions: a task accepts the next available one, reads it, then another",
           words=_FLAG),
    Option("session", None, "session id", "read, stream", "read this one session and no other message"),
    Option("includeRaw", "false", "`true`, `false`", "read, stream",
           "add the column `raw`: the message as it is encoded", words=_FLAG),
    Option("propertiesAs", "typed", "`typed`, `string`", "read, stream",
           "`typed`: properties and annotations with their AMQP type. `string`: as a plain `map<string,string>`",
           words=("typed", "string")),
    Option("partitions", "2", "1 … 1000", "read, stream",
           "how many tasks read in parallel; in a stream each task is one receiver. Every entity has one at least",
           1, 1000),
    Option("fromSequenceNumber", "0", "0 … 2⁶³-1", "read", "first sequence number to read", 0, LONG_MAX),
    Option("toSequenceNumber", str(LONG_MAX), "0 … 2⁶³-1", "read", "last sequence number to read", 0, LONG_MAX),
    Option("pushFilters", "false", "`true`, `false`", "read",
           "let the source filter by `sequence_number` and `enqueued_time`; read about a [defect of "
           "Spark](spark.md#filters) first",
           words=_FLAG),
    Option("startingOffsets", "earliest", "`earliest`, `latest`, JSON", "stream",
           "with `mode=peek` and a new checkpoint: where to begin. JSON names a sequence number for each entity: "
           "`{\"orders\": 5000}`. A stream that receives begins with the first message, and accepts only `earliest`"),
    Option("startingSequenceNumber", None, "0 … 2⁶³-1", "stream",
           "with `mode=peek`, instead of `startingOffsets`: the same number for all entities", 0, LONG_MAX),
    Option("failOnDataLoss", None, "`true`, `false`", "stream",
           "changes nothing, and is accepted only when it is true of the stream: a stream that receives loses "
           "nothing (`true`), a stream that peeks cannot know which messages others have removed (`false`)",
           words=_FLAG),
    Option("stagingLocation", None, "folder, `abfss://…`, `https://…`", "stream",
           "storage that all hosts see, where received messages are kept until Spark has them: a folder, or a path in "
           "[Azure Blob or ADLS Gen2](spark-clusters.md#storage). Required on a cluster; on a local master there is a "
           "[default](spark.md#one-machine); not for `mode=peek`"),
    Option("storageCredential", None, "`env:NAME`, `@FILE`, `default`, `MODULE:CALLABLE`", "stream",
           "where the credential for a `stagingLocation` in Azure is kept. When it is not given: "
           "`env:PAIRBUS_STORAGE` if that variable is set on the driver, else `default`"),
    Option("maxMessagesPerBatch", "10000", "1 … 1000000", "stream", "messages in a micro-batch at most", 1, 1_000_000),
    Option("maxBytesPerBatch", None, "1 … 2⁶³-1", "stream",
           "bytes of encoded messages in a micro-batch at most. The limit is divided among the tasks; only a single "
           "message that is larger than the part of its task may exceed it", 1, LONG_MAX),
    Option("idlePollSeconds", "5", "0.1 … 900", "stream",
           "pause between two looks at an empty queue; every look is a billed operation", 0.1, 900),
    Option("stageRetentionSeconds", "86400", "0 … 31536000", "stream",
           "how long a staged file stays after its micro-batch was committed", 0, 31_536_000),
)  # fmt: skip
BY_NAME = {option.name.lower(): option for option in OPTIONS}

ALIASES = {
    "path": "entity",  # Spark's name for the argument of load, save and start
    "queue": "entity",
    "entities": "entity",
    "maxMessagesPerTrigger": "maxMessagesPerBatch",
    "maxOffsetsPerTrigger": "maxMessagesPerBatch",
    "maxEventsPerTrigger": "maxMessagesPerBatch",
    "maxBytesPerTrigger": "maxBytesPerBatch",
    "minPartitions": "partitions",
}
"Names with the same meaning, so that options of other connectors can stay."
ELSEWHERE = {
    "subscribe": "entity",
    "assign": "entity",
    "subscribePattern": "entityPattern",
    "kafka.bootstrap.servers": "namespace",
    "eventhubs.connectionString": "connectionString",
    "startingPosition": "startingOffsets",
    "startingTimestamp": "startingSequenceNumber",
    "endingOffsets": "toSequenceNumber",
    "groupIdPrefix": "subscription",
    "consumerGroup": "subscription",
    "eventhubs.consumerGroup": "subscription",
}
"Names of other connectors with a similar but different meaning; refused, with a hint."
USES = {
    "read, stream": "reading (spark.read and spark.readStream)",
    "read": "batch reads (spark.read)",
    "stream": "streams that are read (spark.readStream)",
    "write": "writing (write and writeStream)",
}
"Uses of an option in the words of an error."
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "mergeschema"})
