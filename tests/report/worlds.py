"""Ledgers for tests of the report: one whose numbers are obvious, and any number of random ones from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairbus.ledger.rows import Author, encode, event_lines
from pairbus.pairing import events

NOON_S = 1_772_366_400.0  # 2026-03-01T12:00:00Z
PRIMARY, SECONDARY = "contoso.servicebus.windows.net", "fabrikam.servicebus.windows.net"
QUEUES = tuple(f"contoso/x-servicebus-transfer/{number}" for number in range(3))

BROKEN = [
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":1,"ru',
    b"",
    b"[]",
    b'{"schema":2,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":1,"run":"aa","kind":"send"}',
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":"1","run":"aa","kind":"send"}',
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":1,"run":"aa","kind":"send","entity":7}',
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":1,"run":"aa","kind":"event","details":"x"}',
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":1,"run":"aa","kind":"send","count":1.5}',
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":1,"run":"aa","kind":"send","bytes":-1}',
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":1,"run":"aa","kind":"send","count":true}',
    b'{"schema":1,"time":"noon","client":"api","pid":1,"run":"aa","kind":"send"}',
    b'{"schema":1,"time":"2026-13-01T12:00:05.000Z","client":"api","pid":1,"run":"aa","kind":"send"}',
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":1,"run":"aa"}',
    b"{'schema':1,'time':'2026-03-01T12:00:05.000Z','client':'api','pid':1,'run':'aa','kind':'send'}",
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":1,"run":"aa","kind":"send"}{"schema":1}',
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"\xff","pid":1,"run":"aa","kind":"send"}',
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":1,"run":"aa","kind":"send","count":1'
    + b"0" * 30
    + b"}",
    b"\0" * 100,
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":1,"run":"aa","kind":"moved",'
    b'"message_id":"a\\ud83d"}',
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"api","pid":1,"run":"aa","kind":"event",'
    b'"event":"Suspected","details":{"reason":"\\uDE00"}}',
    b'{"schema":1,"time":"2026-03-01T12:00:05.000Z","client":"\xed\xa0\xbd","pid":1,"run":"aa","kind":"send"}',
]
"Lines that are not usable, one of each kind."

ODD_BUT_WHOLE = [
    # As another program may write it: spaces, non-ASCII letters, fields of a later version, braces and keys in texts.
    '{ "schema": 1, "time": "2026-03-01T12:00:30.000Z", "client": "kö\u0308nig", "pid": 9, "run": "bb", "kind": "send",'
    ' "side": "primary", "namespace": "N", "entity": "ORDERS", "cause": "application", "outcome": "ok", "count": 2,'
    ' "billable_operations": 2, "bytes": 20, "colour": {"a": [1]} }\r'.encode(),
    b'{"schema":1,"time":"2026-03-01T12:00:31.000Z","client":"api","pid":9,"run":"bb","kind":"event","event":"Odd",'
    b'"details":{"entity":5,"reason":"} \\"time\\":1"}}',
    b'{"schema":1,"time":"2026-03-01T12:00:32.000Z","client":"api","pid":9,"run":"bb","kind":"x","entity":null}',
    b'{"schema":1,"time":"2026-03-01T12:00:33.000Z","client":"\\uD83D\\uDE00","pid":9,"run":"bb","kind":"x"}',
]
"Lines that look strange and are rows."


@dataclass
class Writer:
    """One process that writes to the ledger. Rows are written in the order of the calls."""

    client: str
    pid: int
    run: str
    lines: list[bytes] = field(default_factory=list)

    @property
    def author(self) -> Author:
        return Author(self.client, self.pid, self.run)

    def meter(
        self,
        at_s: float,
        kind: str,
        entity: str,
        *,
        side: str = "primary",
        cause: str = "application",
        outcome: str = "ok",
        count: int = 1,
        operations: int | None = None,
        size: int = 0,
    ) -> None:
        namespace = PRIMARY if side == "primary" else SECONDARY
        at_s = at_s if kind == "ping" else float(int(at_s))
        row = self.author.row(
            at_s,
            kind,
            side=side,
            namespace=namespace,
            entity=entity,
            cause=cause,
            outcome=outcome,
            count=count,
            billable_operations=count if operations is None else operations,
            bytes=size,
        )
        self.lines.append(encode(row))

    def event(self, at_s: float, event: events.Event) -> None:
        self.lines += event_lines(self.author, event, at_s)

    def lost(self, at_s: float, rows: int, operations: int, size: int) -> None:
        values: dict[str, Any] = {"count": operations, "billable_operations": operations, "bytes": size, "rows": rows}
        self.lines.append(encode(self.author.row(at_s, "lost rows", **values, since="2026-03-01T12:00:00.000Z")))

    def write(self, folder: Path, number: int = 0) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"2026-03-01-{self.client}-{self.pid}-{self.run}-{number}.jsonl"
        path.write_bytes(b"".join(self.lines))
        return path


def hand_ledger(folder: Path) -> None:
    """An hour. One client sends 100 messages; an outage of `orders` takes 10 s to be noticed and lasts a minute.

    Two sends fail before the failover, four messages are diverted, three come home, one of them twice; the fourth is
    dead-lettered. Two pings. A syphon polls twice in vain.
    """
    api = Writer("api", 11, "aaaaaaaa")
    api.meter(NOON_S, "management", "$management", side="secondary", cause="pairing", count=3)
    api.meter(NOON_S, "send", "orders", count=100, operations=100, size=100_000)
    api.meter(NOON_S, "receive", "orders", count=100, operations=100, size=100_000)
    api.meter(NOON_S, "complete", "orders", count=100, operations=100)
    down_s = NOON_S + 600
    for second in (0, 5):
        api.meter(down_s + second, "send", "orders", outcome="timeout")
        api.meter(down_s + second, "failed send", "orders", outcome="timeout", operations=0)
        if second == 0:
            api.event(down_s + 0.25, events.Suspected("Orders", "no answer", 10.0))
    api.event(down_s + 10.25, events.FailedOver("Orders", 10.0, 2, "no answer"))
    for number in range(4):
        at_s = down_s + 20 + 10 * number
        api.meter(at_s, "send", QUEUES[0], side="secondary", cause="failover", size=1000)
        api.event(at_s + 0.5, events.Diverted("orders", QUEUES[0], 1, (f"m{number}",), number == 0))
        if number == 1:
            api.meter(at_s + 0.75, "ping", "orders", cause="failover", outcome="timeout", size=96)
    api.meter(down_s + 60, "ping", "orders", cause="failover", size=96)
    api.event(down_s + 60.25, events.Recovered("orders", 50.0, 4, "a ping"))
    api.write(folder)
    syphon = Writer("syphon", 12, "bbbbbbbb")
    syphon.meter(NOON_S + 60, "empty receive", QUEUES[0], side="secondary", cause="syphon")
    syphon.meter(down_s + 100, "receive", QUEUES[0], side="secondary", cause="syphon", count=5, size=5000)
    syphon.meter(down_s + 100, "send", "orders", cause="syphon", count=4, size=4000)
    syphon.meter(down_s + 100, "complete", QUEUES[0], side="secondary", cause="syphon", count=4)
    syphon.event(down_s + 100.5, events.MaybeDuplicated.late("orders", "m0", 80.0))
    syphon.event(down_s + 100.5, events.Moved("orders", QUEUES[0], 3, ("m0", "m1", "m2")))
    syphon.event(down_s + 101.5, events.Moved("orders", QUEUES[0], 1, ("m0",)))
    syphon.event(down_s + 102.5, events.DeadLettered(QUEUES[0], "m3", "TooLarge", "larger than the queue allows"))
    syphon.meter(NOON_S + 3600, "empty receive", QUEUES[0], side="secondary", cause="syphon")
    syphon.write(folder)


class RandomWorld:
    """Some hours of random work of several clients and syphons; every number comes from the seed."""

    ENTITIES = ("orders", "Bills", "topics/News")

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.hours = self.random.choice([1, 3, 30])
        self.next_id = 0
        self.diverted: list[tuple[float, str, str, str]] = []

    def write(self, folder: Path) -> None:
        rng = self.random
        clients = [Writer(f"client-{number}", number, f"{number:08x}") for number in range(1, rng.randint(3, 5))]
        for writer in clients:
            self._client(writer)
            self._spoil(writer)
            cut = rng.randrange(len(writer.lines))
            for number, lines in enumerate((writer.lines[:cut], writer.lines[cut:])):
                Writer(writer.client, writer.pid, writer.run, lines).write(folder, number)
        syphon = Writer("syphon", 77, "000000ff")
        self._syphon(syphon)
        syphon.write(folder)

    def _spelled(self, entity: str) -> str:
        return self.random.choice([entity, entity.upper(), entity.lower()])

    def _times(self, count: int, begin_s: float, end_s: float) -> list[float]:
        return sorted(round(self.random.uniform(begin_s, end_s), 3) for _ in range(count))

    def _client(self, writer: Writer) -> None:
        rng, end_s = self.random, NOON_S + self.hours * 3600
        steps: list[tuple[float, Any]] = []
        for entity in self.ENTITIES:
            steps += [(at_s, ("own", entity)) for at_s in self._times(rng.randint(5, 30), NOON_S, end_s)]
            for at_s in self._times(rng.randint(0, 3), NOON_S, end_s - 600):
                steps += self._outage(at_s, entity)
        steps += [(at_s, ("lost", "")) for at_s in self._times(rng.randint(0, 1), NOON_S, end_s)]
        steps += [(at_s, ("cleared", "")) for at_s in self._times(rng.randint(0, 1), NOON_S, end_s)]
        for at_s, (what, entity) in sorted(steps, key=lambda step: step[0]):
            self._step(writer, at_s, what, entity)

    def _outage(self, at_s: float, entity: str) -> list[tuple[float, Any]]:
        rng = self.random
        length_s = rng.uniform(5, 500)
        steps: list[tuple[float, Any]] = [(at_s, ("suspected", entity)), (at_s, ("failed", entity))]
        if rng.random() < 0.8:
            steps.append((at_s + length_s * 0.2, ("over", entity)))
            steps += [
                (time, ("divert", entity))
                for time in self._times(rng.randint(0, 40), at_s + length_s * 0.2, at_s + length_s)
            ]
            steps += [
                (time, ("spool", entity))
                for time in self._times(rng.randint(0, 10), at_s + length_s * 0.5, at_s + length_s)
            ]
            steps += [
                (time, ("ping", entity))
                for time in self._times(rng.randint(1, 5), at_s + length_s * 0.2, at_s + length_s)
            ]
            steps += [
                (time, ("forward", entity))
                for time in self._times(rng.randint(0, 3), at_s + length_s, at_s + length_s * 2)
            ]
        if rng.random() < 0.8:
            steps.append((at_s + length_s, ("recovered", entity)))
        return steps

    def _step(self, writer: Writer, at_s: float, what: str, entity: str) -> None:
        rng, path = self.random, self._spelled(entity)
        count = rng.randint(1, 50)
        match what:
            case "own":
                writer.meter(at_s, "send", path, count=count, operations=2 * count, size=count * 70_000)
                writer.meter(
                    at_s, rng.choice(["receive", "empty receive", "complete", "peek", "renew"]), path, count=count
                )
            case "failed":
                writer.meter(at_s, "send", path, outcome="communication", operations=0)
                writer.meter(at_s, "failed send", path, outcome="communication", count=count, operations=0)
            case "suspected":
                writer.event(at_s, events.Suspected(path, f"reason {count}", 10.0))
            case "over":
                writer.event(at_s, events.FailedOver(path, 10.0, 2, "no answer", rng.random() < 0.1))
            case "recovered":
                writer.event(at_s, events.Recovered(path, 10.0, 0, "a ping"))
            case "ping":
                writer.meter(at_s, "ping", path, cause="failover", outcome=rng.choice(["ok", "timeout"]), size=96)
            case "divert":
                self._divert(writer, at_s, path, rng.choice(QUEUES))
            case "spool":
                self._divert(writer, at_s, path, "spool")
            case "forward":
                self._forward(writer, at_s, path)
            case "lost":
                writer.lost(at_s, 5, 10, 1000)
            case "cleared":
                writer.event(at_s, events.PairingCleared(PRIMARY))

    def _divert(self, writer: Writer, at_s: float, path: str, queue: str) -> None:
        ids = []
        for _ in range(self.random.randint(1, 3)):
            # Some ids are used for several entities, and some twice for one.
            self.next_id += self.random.random() < 0.9
            ids.append(f"message \u00fc-{self.next_id}")
        writer.event(at_s, events.Diverted(path, queue, len(ids), tuple(ids), False))
        self.diverted += [(at_s, path, queue, message_id) for message_id in ids]
        if queue != "spool":
            writer.meter(
                at_s,
                "send",
                queue,
                side="secondary",
                cause="failover",
                count=len(ids),
                operations=len(ids) + 1,
                size=len(ids) * 900,
            )

    def _forward(self, writer: Writer, at_s: float, path: str) -> None:
        spooled = [each[3] for each in self.diverted if each[1:3] == (path, "spool")]
        ids = tuple(
            self.random.sample([*spooled, "of a ledger that is not here"], self.random.randint(1, 1 + len(spooled)))
        )
        to, count = self.random.choice(["primary", QUEUES[1]]), len(ids)
        side, entity = ("primary", path) if to == "primary" else ("secondary", to)
        writer.meter(at_s, "send", entity, side=side, cause="spool", count=count, size=count * 900)
        writer.event(at_s, events.SpoolForwarded(path, count, to, 0, ids))
        if self.random.random() < 0.2 and self.diverted:
            writer.event(at_s, events.SpoolRefused(path, self.random.choice(self.diverted)[3], "too large"))

    def _syphon(self, writer: Writer) -> None:
        rng = self.random
        steps = []
        for at_s, path, queue, message_id in self.diverted:
            if queue == "spool" and rng.random() < 0.6:
                continue
            home_s = max(NOON_S, round(at_s + rng.uniform(-1, 900) ** 2 / 900, 3))
            at_queue = rng.choice(QUEUES) if queue == "spool" else queue
            what = rng.choices(["moved", "twice", "dead", "waits"], [80, 5, 5, 10])[0]
            steps.append((home_s, path, at_queue, message_id, what))
            if what == "twice":
                steps.append((home_s + 3, path, at_queue, message_id, "moved"))
        for home_s, path, queue, message_id, what in sorted(steps):
            writer.meter(home_s, "receive", queue, side="secondary", cause="syphon", size=950)
            if what == "dead":
                reason = rng.choice(["TooLarge", "NoPath"])
                writer.event(home_s, events.DeadLettered(queue, message_id, reason, "it is"))
            elif what != "waits":
                writer.meter(home_s, "send", path, cause="syphon", size=900)
                writer.meter(home_s, "complete", queue, side="secondary", cause="syphon")
                writer.event(home_s, events.Moved(path, queue, 1, (message_id,)))
                if rng.random() < 0.1:
                    writer.event(home_s, events.MaybeDuplicated.late(path, message_id, 900.0))
        for number in range(5):
            writer.meter(NOON_S + 900 * number, "empty receive", QUEUES[0], side="secondary", cause="syphon")
        writer.event(NOON_S + 100, events.Moved("orders", QUEUES[0], 3, ("foreign", "", "")))
        writer.event(NOON_S + 100, events.DeadLettered(QUEUES[2], "unknown", "NoPath", "it is"))
        writer.event(NOON_S + 100, events.DeadLettered(QUEUES[2], "", "NoPath", "it is"))

    def _spoil(self, writer: Writer) -> None:
        """Damaged and odd lines between the whole ones; a clock that goes back; a last line that is cut."""
        for line in self.random.sample(BROKEN + ODD_BUT_WHOLE, 4):
            writer.lines.insert(self.random.randrange(len(writer.lines)), line + b"\n")
        writer.lines.append(writer.lines[-1][: self.random.randint(1, 30)])
