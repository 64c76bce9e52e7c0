"""Running clients that `pairbus client` tells to fail over and to be healthy again, as processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.host.control.asking import ask
from pairbus.host.control.places import served
from tests.control.world import QUEUE, Program, World, has_open, inode_of, until


def check_failover_and_back(world: World, program: Program) -> None:
    """Messages go to the backlog from the moment at which the command has ended, and to the primary after the other."""
    assert program.do("send before") == "sent"
    done = world.command("client", "force-failover", QUEUE)
    assert (done.code, done.out) == (0, f"pid {program.pid}: {QUEUE} HEALTHY -> HELD_OVER\n")
    assert program.do("send away") == "sent"
    assert (world.at_home, world.in_backlog) == (["before"], 1)
    done = world.command("client", "force-healthy", "--all-entities", "--pid", str(program.pid))
    assert (done.code, done.out) == (0, f"pid {program.pid}: {QUEUE} HELD_OVER -> HEALTHY\n")
    assert program.do("send after") == "sent"
    assert (world.at_home, world.in_backlog) == (["before", "after"], 1)


def test_sync_client_is_failed_over_and_back(world: World) -> None:
    """The control socket goes when the client is closed."""
    with world.program("sync") as program:
        check_failover_and_back(world, program)
        path = program.socket
        program.end()
        assert not path.exists()


def test_aio_client_is_failed_over_and_back(world: World) -> None:
    """The socket that it leaves when it is killed is removed by the next one who looks."""
    with world.program("aio") as program:
        check_failover_and_back(world, program)
        path = program.socket
        program.kill()
    assert path.exists()
    assert world.command("client", "list").code == 1
    assert not path.exists()


@pytest.mark.parametrize("explicit", [False, True])
def test_children_do_not_have_the_socket(world: World, explicit: bool, control_dir: Path) -> None:
    """A forked child and a started program neither hold nor serve nor remove it; the parent goes on.

    Servers fork workers, and the workers are the ones that an operator must reach: a child that sends has a socket of
    its own, unless the path was given and is the parent's.
    """
    given = control_dir / "given"
    with world.program(control_socket=str(given) if explicit else True) as program:
        path = given if explicit else program.socket
        inode = inode_of(path)
        assert has_open(program.pid, inode)
        idle, spawned = int(program.do("fork")), int(program.do("spawn"))
        sending = int(program.do("fork-and-send one").removeprefix("sent by "))
        until(lambda: not any(has_open(pid, inode) for pid in (idle, spawned, sending)), "no child has it")
        own = [one for one in served("client") if one != path]
        assert [one.name.split("-")[1] for one in own] == ([] if explicit else [str(sending)])
        for one in own:
            done = world.command("client", "force-failover", QUEUE, "--pid", str(sending))
            assert (done.code, done.out) == (0, f"pid {sending}: {QUEUE} HEALTHY -> HELD_OVER\n")
            assert one.exists()
        assert program.do("reap") == "reaped"
        assert not any(one.exists() for one in own)
        said = ask(path, "GET", "/", None, 5.0)[1]
        assert (said["pid"], said["entities"][0]["state"]) == (program.pid, "HEALTHY")
