"""One cable between a transport and a protocol that are lists: no bytes are lost or overtake others."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.faults import Active, Fault
from pairbus.faults.play.cable import Cable, CableFaults


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_reading = True
        self.end: str | None = None

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"

    def is_closing(self) -> bool:
        return self.end is not None

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_write_buffer_size(self) -> int:
        return 0


class Protocol:
    """Keeps what arrives, and whether it may write."""

    def __init__(self) -> None:
        self.arrived: list[bytes] = []
        self.may_write = True

    def data_received(self, data: bytes) -> None:
        self.arrived.append(data)

    def pause_writing(self) -> None:
        self.may_write = False

    def resume_writing(self) -> None:
        self.may_write = True

    def connection_lost(self, error: Exception | None) -> None: ...


class World:
    def __init__(self, late_bytes_max: int = 1000) -> None:
        self.faults = CableFaults(lambda: 0.5)
        self.transport, self.protocol = Transport(), Protocol()
        self.cable = Cable(self.faults, late_bytes_max=late_bytes_max)
        self.cable.protocol = self.protocol
        self.cable.open_on(self.transport)

    def slow_by(self, kind: str, **numbers: float) -> None:
        self.faults.slow_by([Active(1, Fault.read({"kind": kind, **numbers}), 0.0)])


async def test_frozen_cable_keeps_bytes_of_both_directions_in_order() -> None:
    world = World()
    world.faults.freeze(1)
    world.cable.data_received(b"1")
    world.cable.write(b"a")
    world.cable.close()
    assert (world.protocol.arrived, world.transport.written, world.protocol.may_write) == ([], [], False)
    world.faults.thaw(1)
    world.cable.data_received(b"2")  # event loops hand bytes over that were read already
    await asyncio.sleep(0)
    assert world.protocol.arrived == [b"1", b"2"]
    assert (world.transport.written, world.transport.end, world.protocol.may_write) == ([b"a"], "closed", True)


async def test_cable_that_opens_in_a_black_hole_is_frozen_until_every_black_hole_has_ended() -> None:
    world = World()
    world.faults.freeze(1)
    world.faults.freeze(2)
    late = Cable(world.faults, late_bytes_max=1000)
    late.protocol = world.protocol
    late.open_on(world.transport)
    world.faults.thaw(1)
    assert late.is_frozen and not world.transport.is_reading
    world.faults.thaw(2)
    assert not late.is_frozen and world.transport.is_reading


async def test_protocol_that_pauses_reading_is_not_read_when_a_fault_ends() -> None:
    world = World()
    world.cable.pause_reading()
    world.faults.freeze(1)
    world.faults.thaw(1)
    assert not world.transport.is_reading
    world.cable.resume_reading()
    assert world.transport.is_reading


async def test_too_many_late_bytes_stop_the_writer_until_half_of_them_have_left() -> None:
    world = World(late_bytes_max=10)
    world.slow_by("latency", delay_s=60)
    world.cable.write(bytes(11))
    assert (world.protocol.may_write, world.cable.get_write_buffer_size()) == (False, 11)
    world.faults.slow_by([])
    assert (world.protocol.may_write, world.transport.written) == (True, [bytes(11)])


async def test_thin_cable_reads_no_more_until_it_has_passed_the_bytes() -> None:
    world = World()
    world.slow_by("bandwidth", bytes_per_s=1)
    world.cable.data_received(b"1")
    assert (world.transport.is_reading, world.protocol.arrived) == (False, [])
    world.faults.slow_by([])
    async with asyncio.timeout(5):
        while not world.transport.is_reading:  # noqa: ASYNC110 - the transport sets no event
            await asyncio.sleep(0)
    assert world.protocol.arrived == [b"1"]


async def test_bytes_that_break_the_protocol_after_a_fault_end_the_connection() -> None:
    """A transport does the same when the protocol fails at bytes that it hands over itself."""
    reported: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    world, bug = World(), ValueError("a bug")

    def fail(data: bytes) -> None:
        raise bug

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.protocol, "data_received", fail)
        world.faults.freeze(1)
        world.cable.data_received(b"1")
        world.faults.thaw(1)
        await asyncio.sleep(0)
    assert (reported, world.transport.end) == ([bug], "aborted")


async def test_lost_connection_drops_its_bytes() -> None:
    world = World()
    world.slow_by("latency", delay_s=0.001)
    world.cable.write(b"a")
    world.cable.connection_lost(None)
    await asyncio.sleep(0.01)
    assert (world.transport.written, world.faults.open) == ([], set())


async def test_protocol_that_takes_over_gets_the_bytes_that_the_cable_kept() -> None:
    """The first bytes show that a connection is one of HTTP, whose protocol reads the transport without a cable."""
    world, first, second = World(), Protocol(), Protocol()

    def take_over(data: bytes) -> None:
        first.arrived.append(data)
        world.cable.leave()
        world.cable.protocol = second

    world.cable.protocol = first
    world.faults.freeze(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first, "data_received", take_over)
        world.cable.data_received(b"1")
        world.cable.data_received(b"2")
        world.faults.thaw(1)
        await asyncio.sleep(0)
    assert (first.arrived, second.arrived, world.transport.is_reading) == ([b"1"], [b"2"], True)
