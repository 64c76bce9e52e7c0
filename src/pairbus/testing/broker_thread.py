"""A broker for code that blocks: it runs on an event loop in a thread of its own.

with BrokerThread() as broker:
    broker.create_queue("orders")
    client = ServiceBusClient.from_connection_string(broker.connection_string())
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from pairbus.broker import Broker, NamespaceOptions
from pairbus.broker.description import QueueDescription, RuleDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.kit.clock import NamespaceClock
from pairbus.broker.namespace import Namespace
from pairbus.errors import ConfigError
from pairbus.filters import SqlFilter
from pairbus.testing.entity_settings import described_queue, described_subscription, described_topic
from pairbus.testing.outages import Outage, ThreadFaults
from pairbus.testing.sent import SentMessage, sent_message
from pairbus.testing.threads import LoopThread, Run

T = TypeVar("T")
RULE = "filter"
D = TypeVar("D", QueueDescription, TopicDescription)


class ThreadClock:
    """The clock of a namespace, moved from any thread. `pairbus.broker.kit.clock` explains its effects."""

    def __init__(self, clock: NamespaceClock, run: Run) -> None:
        self._clock = clock
        self._run = run

    def __repr__(self) -> str:
        return repr(self._clock)

    def now(self) -> datetime:
        """Read the clock as a date in UTC."""
        return self._clock.now()

    @property
    def offset(self) -> timedelta:
        """Time by which this clock is ahead of the machine's."""
        return self._clock.offset

    def advance(self, seconds: float | timedelta) -> datetime:
        """Move the clock forward; all that became due has happened when the call returns."""
        return self._run(self._clock.advance(seconds))

    def advance_to(self, when: datetime) -> datetime:
        """Move the clock to a later date, which has a time zone; otherwise as `advance`."""
        return self._run(self._clock.advance_to(when))


class PairClock:
    """The clocks of several namespaces, moved together."""

    def __init__(self, *clocks: ThreadClock) -> None:
        self._clocks = clocks

    def __repr__(self) -> str:
        return f"<PairClock {' '.join(map(repr, self._clocks))}>"

    def now(self) -> datetime:
        """Read the clock that is ahead, as a date in UTC."""
        return max(clock.now() for clock in self._clocks)

    @property
    def offset(self) -> timedelta:
        """Time by which the clock that is ahead is ahead of the machine's."""
        return max(clock.offset for clock in self._clocks)

    def advance(self, seconds: float | timedelta) -> datetime:
        """Move each clock forward; all that became due has happened when the call returns."""
        return max([clock.advance(seconds) for clock in self._clocks])

    def advance_to(self, when: datetime) -> datetime:
        """Move each clock to a later date, which has a time zone."""
        return max([clock.advance_to(when) for clock in self._clocks])


class ServiceBusNamespace:
    """One namespace of a broker in a thread. Every method may be called from any thread but the broker's own.

    Settings of entities have the names of `ServiceBusAdministrationClient`; durations are timedeltas or seconds.
    """

    def __init__(self, name: str, connection_string: str, ca_file: Path, namespace: Namespace, run: Run) -> None:
        self.name = name
        self.connection_string = connection_string
        "Connection string for every SDK. Administration clients also need `connection_verify=str(namespace.ca_file)`."
        self.ca_file = ca_file
        "Certificate of the broker, for clients that speak TLS."
        self.clock = ThreadClock(namespace.clock, run)
        self.faults = ThreadFaults(namespace.faults, run)
        self._namespace = namespace
        self._run = run

    def __repr__(self) -> str:
        return f"<ServiceBusNamespace {self.name}>"

    def create_queue(self, name: str, **settings: Any) -> str:
        """Create a queue, and return its name."""
        return self._run(self._create(described_queue(name, settings)))

    def create_topic(self, name: str, **settings: Any) -> str:
        """Create a topic, and return its name."""
        return self._run(self._create(described_topic(name, settings)))

    async def _create(self, description: D) -> str:
        return (await self._namespace.create(description)).path

    def create_subscription(self, topic: str, name: str, *, sql_filter: str | None = None, **settings: Any) -> str:
        """Create a subscription, which gets every message or those that the filter selects, and return its name."""
        rules = None if sql_filter is None else [RuleDescription(topic, name, RULE, filter=SqlFilter(sql_filter))]
        return self._run(self._subscribe(described_subscription(topic, name, settings), rules))

    async def _subscribe(self, description: SubscriptionDescription, rules: list[RuleDescription] | None) -> str:
        if rules is None:
            return (await self._namespace.create(description)).name
        return (await self._namespace.create_subscription(description, rules)).name

    def reset(self, entities: Literal["keep", "delete"] = "keep") -> None:
        """End all faults, empty every entity or delete all of them, and forget recorded sends. The clock stays."""
        self._run(self._namespace.reset(entities))

    def outage(self, kind: str, **fields: Any) -> Outage:
        """Switch a fault on until the end of a `with` block; kinds and fields are those of `faults.add`."""
        return Outage(self.faults, kind, fields)

    def sent(self, entity: str) -> list[SentMessage]:
        """Return the messages that a queue or topic has accepted, in order, also those that were received meanwhile.

        The last 10 000 of the namespace are kept, or 64 MB of them.
        """
        return [sent_message(one) for one in self._run(self._recorded(entity))]

    async def _recorded(self, entity: str) -> list[Any]:
        if self._namespace.recorder is None:
            raise ConfigError("sends are not recorded: the broker was made with record_sends=False")
        if entity.lower() not in {*self._namespace.queue_keys(), *self._namespace.topic_keys()}:
            names = ", ".join([*self._namespace.queue_keys(), *self._namespace.topic_keys()])
            raise ConfigError(f"there is no queue or topic {entity!r}; there are: {names or 'none'}")
        return self._namespace.recorder.of(entity)


class BrokerThread:
    """A broker on an event loop in a daemon thread, from `start` to `stop` or in a `with` block.

    `namespaces` are names or `NamespaceOptions`; without `data` the store is in memory; further options are those of
    `pairbus.broker.Broker`. Methods about entities use the first namespace, unless `namespace` names another.
    """

    def __init__(
        self, namespaces: Sequence[str | NamespaceOptions] = ("contoso",), *, data: Path | None = None, **options: Any
    ) -> None:
        served = [NamespaceOptions(one) if isinstance(one, str) else one for one in namespaces]
        self._make: Callable[[], Broker] = lambda: Broker(served, data=data, **{"record_sends": True, **options})
        self._make()  # raises for wrong options here, not in a thread
        self._broker: Broker | None = None
        self._thread: LoopThread | None = None
        self._namespaces: dict[str, ServiceBusNamespace] = {}

    def __repr__(self) -> str:
        return f"<BrokerThread {' '.join(one.name for one in self._namespaces.values()) or 'stopped'}>"

    def __enter__(self) -> BrokerThread:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Serve the namespaces; clients can connect when the call returns."""
        if self._thread is not None:
            raise ConfigError("the broker is running already")
        self._thread = LoopThread("pairbus-broker")
        self._broker = broker = self._make()
        try:
            self._run(broker.start())
        except BaseException:
            self._end_thread()
            raise
        for name in broker.names():
            self._add(broker, name)

    def stop(self) -> None:
        """Stop the broker and its thread. Harmless when it is not running."""
        if self._thread is not None and self._broker is not None:
            try:
                self._run(self._broker.stop())
            finally:
                self._end_thread()

    def _end_thread(self) -> None:
        assert self._thread is not None
        self._thread.close()
        self._thread = self._broker = None
        self._namespaces.clear()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise ConfigError("the broker is not running: use it in a with block, or start it")
        return self._thread.run(work)

    def _add(self, broker: Broker, name: str) -> ServiceBusNamespace:
        new = ServiceBusNamespace(
            name, broker.connection_string(name), broker.ca_file, broker.namespace(name), self._run
        )
        self._namespaces[name.lower()] = new
        return new

    # ── namespaces ──

    def namespace(self, name: str | None = None) -> ServiceBusNamespace:
        """Return one of the namespaces; None: the first. ConfigError lists the existing ones."""
        namespace = next(iter(self._namespaces.values()), None) if name is None else self._namespaces.get(name.lower())
        if namespace is None:
            names = ", ".join(one.name for one in self._namespaces.values())
            raise ConfigError(
                f"there is no namespace {name!r}; there are: {names or 'none, the broker is not running'}"
            )
        return namespace

    def add_namespace(self, namespace: str | NamespaceOptions) -> ServiceBusNamespace:
        """Serve one more namespace, on any free port unless its options say otherwise."""
        options = NamespaceOptions(namespace) if isinstance(namespace, str) else namespace
        if self._broker is None:
            raise ConfigError("the broker is not running: use it in a with block, or start it")
        self._run(self._broker.add_namespace(options))
        return self._add(self._broker, options.name)

    def remove_namespace(self, name: str) -> None:
        """Stop serving a namespace and cut the connections of its clients."""
        namespace = self.namespace(name)
        assert self._broker is not None, "it has namespaces"
        del self._namespaces[namespace.name.lower()]
        self._run(self._broker.remove_namespace(namespace.name, at_once=True))

    def connection_string(self, namespace: str | None = None) -> str:
        return self.namespace(namespace).connection_string

    # ── the first namespace, or another one ──

    def create_queue(self, name: str, *, namespace: str | None = None, **settings: Any) -> str:
        """Create a queue, and return its name."""
        return self.namespace(namespace).create_queue(name, **settings)

    def create_topic(self, name: str, *, namespace: str | None = None, **settings: Any) -> str:
        """Create a topic, and return its name."""
        return self.namespace(namespace).create_topic(name, **settings)

    def create_subscription(self, topic: str, name: str, *, namespace: str | None = None, **settings: Any) -> str:
        """Create a subscription, and return its name."""
        return self.namespace(namespace).create_subscription(topic, name, **settings)

    def clock(self, namespace: str | None = None) -> ThreadClock:
        return self.namespace(namespace).clock

    def faults(self, namespace: str | None = None) -> ThreadFaults:
        return self.namespace(namespace).faults

    def reset(self, entities: Literal["keep", "delete"] = "keep", *, namespace: str | None = None) -> None:
        """End all faults, and empty every entity or delete all of them."""
        self.namespace(namespace).reset(entities)
