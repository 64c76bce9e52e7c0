"""Options of a pairing: names, defaults and ranges in one table."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike, environ, fspath
from typing import Any, Literal

from pairbus.errors import did_you_mean
from pairbus.pairing.events import Event
from pairbus.pairing.policy import FailurePolicy

Duration = float | timedelta
"Seconds, or a timedelta."
Ping = Literal["auto", "message", "attach"]
TtlPolicy = Literal["restore", "deduct"]

SEND_TIMEOUT_S = 60.0  # time-out of a send that names none
PRIMARY_SHARE = 1 / 3  # part of the time-out, at most, for the primary before the backlog is tried


@dataclass(frozen=True, slots=True)
class _Range:
    least: float
    most: float
    unit: str = "s"
    optional: bool = False

    def __str__(self) -> str:
        if self.most == float("inf"):
            return f"at least {self.least:.10g} {self.unit}"
        return f"{self.least:.10g} … {self.most:.10g} {self.unit}"

    def check(self, name: str, value: float | None) -> None:
        if value is None and self.optional:
            return
        if value is None or not self.least <= value <= self.most:
            raise ValueError(f"{name} is {value!r}; it must be {self}")


_FOREVER = float("inf")
RANGES: dict[str, _Range] = {
    "backlog_queue_count": _Range(1, 10_000, "queues"),
    "failover_interval": _Range(0, 60 * 60),
    "ping_primary_interval": _Range(1, 30 * 60),
    "syphon_retry_interval": _Range(1, 2 * 60),
    "healthy_pings_required": _Range(1, 1_000, "pings"),
    "busy_counts_after": _Range(10, _FOREVER, optional=True),
    "backlog_retry_interval": _Range(1, 60 * 60),
    "missing_destination_grace": _Range(0, 14 * 86_400),
    "duplicate_detection_window": _Range(20, 7 * 86_400),
    "max_messages_per_second": _Range(0.1, 1_000_000, "messages a second", optional=True),
    "attempt_timeout": _Range(0.1, 60),
    "connect_timeout": _Range(0.1, 60),
    "spool_max_bytes": _Range(1 << 16, _FOREVER, "bytes"),
}
CHOICES: dict[str, tuple[str, ...]] = {"ping": ("auto", "message", "attach"), "ttl_policy": ("restore", "deduct")}
SINGLE = ("control_socket", "ledger", "on_event", "policy")
"Options of a client of one namespace; all others belong to a pair."
LEDGER = "PAIRBUS_LEDGER"
_SEGMENT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,198}[A-Za-z0-9])?")  # leaves room for the rest of 260 characters


def seconds(value: Duration | None, name: str) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} is {value!r}; it must be a number or a timedelta, {RANGES[name]}")


class PairedNamespaceOptions:
    """Options that every kind of pairing has."""

    def __init__(self, failover_interval: Duration = timedelta(minutes=1)) -> None:
        self.failover_interval = self._number("failover_interval", failover_interval)
        "Seconds for which failures of an entity are accepted before its sends go to the secondary."

    @staticmethod
    def _number(name: str, value: Any) -> float:
        value_s = seconds(value, name)
        RANGES[name].check(name, value_s)
        assert value_s is not None
        return value_s

    @staticmethod
    def _optional(name: str, value: Any) -> float | None:
        value_s = seconds(value, name)
        RANGES[name].check(name, value_s)
        return value_s


class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions):
    """Options for sends that go on while the primary is away. A ValueError names option, value and accepted range.

    Durations are seconds or `timedelta`, and are kept in seconds.
    """

    def __init__(  # noqa: PLR0913 - the options of a pairing
        self,
        secondary_namespace_manager: Any = None,
        messaging_factory: Any = None,
        backlog_queue_count: int = 10,
        failover_interval: Duration = timedelta(minutes=1),
        enable_syphon: bool = False,
        *,
        ping_primary_interval: Duration = 60,
        syphon_retry_interval: Duration = 1,
        primary_name: str | None = None,
        ping: Ping = "auto",
        healthy_pings_required: int = 1,
        busy_counts_after: Duration | None = None,
        backlog_retry_interval: Duration = 60,
        create_backlog_queues: bool = True,
        require_secondary: bool = True,
        ttl_policy: TtlPolicy = "restore",
        ordered: bool = False,
        missing_destination_grace: Duration = timedelta(minutes=15),
        duplicate_detection_window: Duration = timedelta(minutes=10),
        max_messages_per_second: float | None = None,
        attempt_timeout: Duration = 3,
        connect_timeout: Duration = 3,
        spool_dir: str | PathLike[str] | None = None,
        spool_max_bytes: int = 1 << 30,
        ledger: str | PathLike[str] | None = None,
        control_socket: bool | str | PathLike[str] | None = None,
        policy: FailurePolicy | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(failover_interval)
        self.secondary_namespace_manager = secondary_namespace_manager
        "The SDK's ServiceBusAdministrationClient of the secondary; not needed when backlog queues are not created."
        self.messaging_factory = messaging_factory
        "The SDK's ServiceBusClient of the secondary."
        self.backlog_queue_count = _whole("backlog_queue_count", backlog_queue_count)
        "Number of queues to find or create; after pairing, the number that was found or created."
        self.enable_syphon = _flag("enable_syphon", enable_syphon)
        self.ping_primary_interval = self._number("ping_primary_interval", ping_primary_interval)
        self.syphon_retry_interval = self._number("syphon_retry_interval", syphon_retry_interval)
        self.primary_name = None if primary_name is None else checked_name(primary_name)
        self.ping = _choice("ping", ping)
        self.healthy_pings_required = _whole("healthy_pings_required", healthy_pings_required)
        self.busy_counts_after = self._optional("busy_counts_after", busy_counts_after)
        "Seconds after which endless throttling counts as an outage; None: never."
        self.backlog_retry_interval = self._number("backlog_retry_interval", backlog_retry_interval)
        self.create_backlog_queues = _flag("create_backlog_queues", create_backlog_queues)
        "False: the queues exist already (`pairbus pair create`), and no Manage claim is needed."
        self.require_secondary = _flag("require_secondary", require_secondary)
        "False: start unpaired when the secondary cannot be reached, and pair when it can."
        self.ttl_policy = _choice("ttl_policy", ttl_policy)
        self.ordered = _flag("ordered", ordered)
        self.missing_destination_grace = self._number("missing_destination_grace", missing_destination_grace)
        self.duplicate_detection_window = self._number("duplicate_detection_window", duplicate_detection_window)
        "Window of the primary's entities: a message with an unknown outcome that comes home later is reported."
        self.max_messages_per_second = self._optional("max_messages_per_second", max_messages_per_second)
        "Budget of the syphon, in messages a second; None: no limit."
        self.attempt_timeout = self._number("attempt_timeout", attempt_timeout)
        "Seconds that one attempt may wait for an answer before it counts as a failure."
        self.connect_timeout = self._number("connect_timeout", connect_timeout)
        self.spool_dir = _folder("spool_dir", spool_dir)
        "Folder that keeps messages when neither namespace takes them; None: the caller gets the error."
        self.spool_max_bytes = _whole("spool_max_bytes", spool_max_bytes)
        self.ledger = _folder("ledger", environ.get(LEDGER) or None if ledger is None else ledger)
        "Folder of the ledger, by default that of the variable PAIRBUS_LEDGER; None: no ledger is written."
        self.control_socket = _socket(control_socket)
        "Path of the socket; True: in the folder of the user; None: as PAIRBUS_CONTROL_SOCKET says, unset means no."
        self.policy = FailurePolicy() if policy is None else _policy(policy)
        self.on_event = None if on_event is None else _listener(on_event)

    def __repr__(self) -> str:
        return (
            f"<SendAvailabilityPairedNamespaceOptions failover_interval={self.failover_interval:g}s"
            f" backlog_queue_count={self.backlog_queue_count} enable_syphon={self.enable_syphon}>"
        )


def check_names(options: Iterable[str]) -> None:
    """Raise TypeError for a name that no option has; it names the option that was probably meant."""
    known = inspect.signature(SendAvailabilityPairedNamespaceOptions).parameters
    for name in options:
        if name not in known:
            raise TypeError(f"got an unexpected keyword argument {name!r}{did_you_mean(name, known)}")


def factory_of(options: Any) -> Any:
    """Return the SDK's client of the secondary from the options; for callers that cannot make one."""
    if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
        wanted = SendAvailabilityPairedNamespaceOptions.__name__
        raise TypeError(f"options must be {wanted}, not {type(options).__name__}")
    if options.messaging_factory is None:
        raise ValueError("options.messaging_factory is None; it must be the ServiceBusClient of the secondary")
    return options.messaging_factory


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; it must be a whole number, {RANGES[name]}")
    RANGES[name].check(name, value)
    return value


def _choice(name: str, value: Any) -> Any:
    if value not in CHOICES[name]:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(CHOICES[name])}")
    return value


def _flag(name: str, value: Any) -> bool:
    """Check that an option is a bool: any text, as from the environment, would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; it must be True or False")
    return value


def _folder(name: str, value: Any) -> str | PathLike[str] | None:
    if value is None or (isinstance(value, str | PathLike) and isinstance(fspath(value), str) and fspath(value)):
        return value
    raise ValueError(f"{name} is {value!r}; it must be the path of a folder, or None")


def _socket(value: Any) -> bool | str | PathLike[str] | None:
    if isinstance(value, bool):
        return value
    try:
        return _folder("control_socket", value)
    except ValueError:
        raise ValueError(f"control_socket is {value!r}; it must be True, False, None or the path of a socket") from None


def _policy(value: Any) -> FailurePolicy:
    """Check that an option is a failure policy: an object with a `reaction`."""
    if isinstance(value, type) or not callable(getattr(value, "reaction", None)):
        raise ValueError(f"policy is {value!r}; it must be a FailurePolicy, or have a method `reaction` as it has")
    return value  # type: ignore[no-any-return]


def _listener(value: Any) -> Callable[[Event], None]:
    """Check the listener. A coroutine function is refused: it would never be awaited, so no event would be told."""
    if not callable(value):
        raise ValueError(f"on_event is {value!r}; it must be a function that takes an event")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise ValueError(
            f"on_event is {value!r}; it must be a plain function, not a coroutine function:"
            " to await something for each event, iterate over events() of the asyncio client"
        )
    return value  # type: ignore[no-any-return]


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not _SEGMENT.fullmatch(name):
        raise ValueError(
            f"primary_name is {name!r}; it must be a legal path segment: letters, digits, '.', '-' and '_',"
            " a letter or digit at both ends"
        )
    return name


def primary_name_of(authority: str) -> str:
    """Return the first DNS label of a host; an address or localhost keeps its port, with other characters as `-`."""
    authority = authority.strip().rstrip("/").lower()
    host = re.sub(r":\d+$", "", authority)
    if host == "localhost" or ":" in host or re.fullmatch(r"[\d.]+", host):
        return checked_name(re.sub(r"[^a-z0-9]+", "-", authority).strip("-"))
    return checked_name(host.split(".")[0])
