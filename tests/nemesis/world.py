"""Two brokers, and the processes around them: started, stopped, killed, healed, ended."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.cli.serve.control_client import control_client
from pairbus.errors import ConfigError, PairbusError
from pairbus.faults import Fault
from tests.brokers import BrokerProcess
from tests.nemesis.entities import make_backlog, make_entities
from tests.nemesis.places import (
    BACKLOG,
    NEWS,
    PRIMARY,
    SECONDARY,
    SIDES,
    SINKS,
)
from tests.nemesis.plan import SENDERS, Plan
from tests.nemesis.processes import Child, Zygote

RATE = 75.0  # messages a second of one sender
PLACES = {"PRIMARY": PRIMARY, "SECONDARY": SECONDARY}
SYPHON = ["syphon", "--primary-name", PRIMARY, "--backlog-queue-count", str(len(BACKLOG))]
BEGUN = dict.fromkeys(SENDERS, "ok")
"Records with which processes have begun, where it is not `begin`: senders have sent something."
BEGUN_WITHIN_S = 60.0
PROGRAM = "tests.nemesis.program"


class World:
    """All processes of a run. Its folder stays when `keep` is set before the end."""

    def __init__(self, seed: str, *, rate: float = RATE) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nemesis-"))
        self.keep = False
        self.children: dict[str, Child] = {}
        self.missed = 0
        "Faults that could not be added, because the broker was not there to hear of it."
        self._seed = seed
        self._rate = rate
        self.bug = ""
        "Planted in the clients that begin from now on."
        self.brokers = {side: self._new_broker(side) for side in SIDES}
        self._zygote = Zygote()
        self._admins: dict[str, ServiceBusAdministrationClient] = {}

    def _new_broker(self, name: str) -> BrokerProcess:
        side = name.partition("-")[0]
        environment = {"NEMESIS_BUG": self.bug}
        return BrokerProcess(self.folder / name, namespaces=[side], program=PROGRAM, environment=environment)

    def __enter__(self) -> World:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(BrokerProcess.start, self.brokers.values()))
        self._admins = {side: broker.admin(side) for side, broker in self.brokers.items()}
        make_entities(self._admins[PRIMARY])
        make_backlog(self._admins[SECONDARY])

    def replace_primary(self, bug: str) -> None:
        """Plant a bug in a new and empty primary, in place of the old one."""
        self.brokers[PRIMARY].kill()
        self._admins[PRIMARY].close()
        self.bug = bug
        broker = self.brokers[PRIMARY] = self._new_broker(f"{PRIMARY}-{bug.replace(' ', '-')}")
        self.bug = ""
        broker.start()
        self._admins[PRIMARY] = broker.admin(PRIMARY)
        make_entities(self._admins[PRIMARY])

    def __exit__(self, *_: object) -> None:
        self._zygote.close()
        for broker in self.brokers.values():
            broker.kill()
        for admin in self._admins.values():
            admin.close()
        if not self.keep:
            shutil.rmtree(self.folder)

    def connection_string(self, side: str) -> str:
        return self.brokers[side].connection_string(side)

    # ── the clients ──

    def begin_round(self, number: int, folder: Path, plan: Plan) -> None:
        """Start new senders, receivers and syphons, with their logs in `folder`."""
        self.children = {}
        order = "ordered" if plan.is_ordered else "free"
        for flavour in plan.senders:
            first, last = [flavour, order], [self._seed, str(self._rate)]
            self._child(flavour, folder, "tests.nemesis.sender", number, first, last)
        for name in plan.receivers:
            self._child(name, folder, "tests.nemesis.receiver", number, [], [self._seed])
        for name in plan.syphons:
            self.children[name] = Child(name, folder, self._zygote, PROGRAM, lambda life, log: SYPHON)
        for name in self.children:
            self.start(name)
        deadline = time.monotonic() + BEGUN_WITHIN_S
        while idle := [
            name for name, child in self.children.items() if not child.has_written(BEGUN.get(name, "begin"))
        ]:
            assert time.monotonic() < deadline, f"{', '.join(idle)} did not begin within {BEGUN_WITHIN_S} s"
            time.sleep(0.05)

    def _child(self, name: str, folder: Path, module: str, number: int, first: list[str], last: list[str]) -> None:
        def arguments(life: str, log: Path) -> list[str]:
            return [*first, f"{number}-{life}", *last, str(log)]

        self.children[name] = Child(name, folder, self._zygote, module, arguments)

    # ── trouble ──

    def start(self, name: str) -> None:
        """Start a process that does not run."""
        if name in self.brokers:
            self.brokers[name].start()
        else:
            places = {f"PAIRBUS_{what}": self.connection_string(side) for what, side in PLACES.items()}
            self.children[name].start({**places, "NEMESIS_BUG": self.bug})

    def kill(self, name: str) -> None:
        (self.brokers[name] if name in self.brokers else self.children[name]).kill()

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process, if it runs."""
        if name in self.children:
            self.children[name].send(number)
        elif self.brokers[name].is_running:
            self.brokers[name].send(number)

    def add_fault(self, side: str, fields: dict[str, Any]) -> bool:
        """Switch a fault on; False when the broker does not run or is stopped."""
        Fault.read(fields)
        try:
            self._control(side, "POST", fields)
        except PairbusError as error:
            if isinstance(error, ConfigError):
                raise
            self.missed += 1
            return False
        return True

    def clear_faults(self, side: str) -> None:
        self._control(side, "DELETE")
        left = self._control(side, "GET")
        assert left == [], f"faults of {side} are still on: {left}"

    def _control(self, side: str, method: str, fields: dict[str, Any] | None = None) -> Any:
        return control_client(self.brokers[side].data_dir, None, None, None).call(method, "faults", fields)

    # ── looking ──

    def counts(self) -> Counter[str]:
        """Return how many messages wait in each entity of both sides; dead letters and empty ones are left out."""
        home, away = self._admins[PRIMARY], self._admins[SECONDARY]
        found: Counter[str] = Counter()
        for sink in SINKS:
            topic, _, subscription = sink.partition("/Subscriptions/")
            look = (
                home.get_subscription_runtime_properties(topic, subscription)
                if subscription
                else home.get_queue_runtime_properties(sink)
            )
            found[sink] = (look.total_message_count or 0) - (look.dead_letter_message_count or 0)
        found[NEWS] = home.get_topic_runtime_properties(NEWS).scheduled_message_count or 0
        for queue in BACKLOG:
            properties = away.get_queue_runtime_properties(queue)
            found[queue] = (properties.total_message_count or 0) - (properties.dead_letter_message_count or 0)
        return +found

    def tracebacks(self) -> Iterator[str]:
        """Yield the output of processes before they failed."""
        for name, text in [
            *((side, broker.stderr) for side, broker in self.brokers.items()),
            *((name, child.stderr_file.read_text(errors="replace")) for name, child in self.children.items()),
        ]:
            if "Traceback" in text:
                yield f"{name}: …{text[text.rindex('Traceback') - 200 :][:3000]}"
