"""The ratchet of `make coverage`: sums by part, floors that only rise, and a failure below them."""

from __future__ import annotations

import tomllib

import pytest
from tools.coverage_ratchet import FLOORS, OWN_TESTS, PARTS, ROOT, TESTS, Reached, below, main, raised, sums


def summary(branches: int, covered: int) -> dict[str, dict[str, int]]:
    return {"summary": {"num_branches": branches, "covered_branches": covered}}


def test_branches_are_added_up_by_part() -> None:
    """The broker's cores are single files: its servers, which need sockets, do not count."""
    report = {
        "files": {
            "src/pairbus/amqp/types.py": summary(10, 9),
            "src/pairbus/amqp/link.py": summary(10, 10),
            "src/pairbus/broker/entities/queue.py": summary(4, 3),
            "src/pairbus/broker/wire/server.py": summary(100, 0),
        }
    }
    found = sums(report)
    assert found["amqp"] == Reached(20, 19) and found["broker cores"] == Reached(4, 3)
    assert found["client"] == Reached(0, 0)


def test_a_part_below_its_floor_is_named() -> None:
    """A part without a floor is named too, and one of which nothing was measured: a silent 100 % would hide both."""
    reached = {"amqp": Reached(1000, 949), "pairing": Reached(10, 10), "client": Reached(0, 0)}
    said = below(reached, {"amqp": 95.0, "client": 95.0})
    assert [text.split()[0].rstrip(":") for text in said] == ["amqp", "pairing", "client"]
    assert "94.90 %" in said[0]
    assert below({"amqp": Reached(1000, 950)}, {"amqp": 95.0}) == []


def test_floors_rise_and_never_fall() -> None:
    """Rounded down, so that the run that raised them passes."""
    reached = {"amqp": Reached(1000, 978), "pairing": Reached(1000, 960)}
    floors = raised(reached, {"amqp": 97.0, "pairing": 97.0})
    assert floors == {"amqp": 97.8, "pairing": 97.0}


def test_every_part_that_is_measured_has_a_floor() -> None:
    """A part without a floor could lose its tests unnoticed."""
    floors = tomllib.loads(FLOORS.read_text())["branches"]
    assert floors.keys() == PARTS.keys()
    assert all(0.0 <= floor <= 100.0 for floor in floors.values()), floors


def test_own_tests_of_a_part_are_in_the_whole_run() -> None:
    """A floor that a run for one part has raised must be reached by the whole run too."""
    assert OWN_TESTS.keys() == PARTS.keys()
    for path in (path for paths in OWN_TESTS.values() for path in paths):
        assert (ROOT / path).exists() and path.startswith(TESTS), path


def test_a_part_that_does_not_exist_is_refused_before_anything_runs() -> None:
    """A typing error must not look like a part without trouble."""
    with pytest.raises(SystemExit, match="no such part: ampq; there are amqp, pairing"):
        main(["ampq"])
