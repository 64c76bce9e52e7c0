"""Failures that count, as the tables of the specification state it."""

from __future__ import annotations

import pytest

from pairbus.pairing.policy import REACTIONS, Failure, FailurePolicy, Kind, Reaction, kind_of_condition

COUNTS, WAITS, RAISES = Reaction.COUNT, Reaction.WAIT, Reaction.RAISE


@pytest.mark.parametrize(
    ("kind", "reaction"),
    [
        (Kind.COMMUNICATION, COUNTS),
        (Kind.TIMEOUT, COUNTS),
        (Kind.INTERNAL, COUNTS),
        (Kind.FULL, COUNTS),
        (Kind.BUSY, WAITS),
        (Kind.UNAUTHORIZED, RAISES),
        (Kind.NOT_FOUND, RAISES),
        (Kind.DISABLED, RAISES),
        (Kind.TOO_LARGE, RAISES),
        (Kind.INVALID, RAISES),
    ],
)
def test_each_kind_of_failure_has_the_reaction_of_the_table(kind: Kind, reaction: Reaction) -> None:
    """Only what another namespace could do better counts; throttling asks for patience, mistakes for the caller."""
    assert FailurePolicy().reaction(Failure(kind, "text")) is reaction


def test_every_kind_has_a_row() -> None:
    assert set(REACTIONS) == set(Kind)


def test_policy_with_a_missing_row_is_refused_by_name() -> None:
    """A hole in the table would be found in the night of an outage."""
    with pytest.raises(ValueError, match="no row for BUSY, INVALID"):
        FailurePolicy({kind: COUNTS for kind in Kind if kind not in (Kind.BUSY, Kind.INVALID)})


def test_single_rows_can_be_replaced() -> None:
    policy = FailurePolicy({**REACTIONS, Kind.DISABLED: COUNTS})
    assert policy.reaction(Failure(Kind.DISABLED, "")) is COUNTS
    assert policy.reaction(Failure(Kind.BUSY, "")) is WAITS


def test_the_published_table_cannot_be_changed_for_everybody() -> None:
    with pytest.raises(TypeError):
        REACTIONS[Kind.BUSY] = COUNTS  # type: ignore[index]


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("amqp:not-found", Kind.NOT_FOUND),
        ("status:404", Kind.NOT_FOUND),
        ("amqp:unauthorized-access", Kind.UNAUTHORIZED),
        ("status:401", Kind.UNAUTHORIZED),
        ("com.microsoft:server-busy", Kind.BUSY),
        ("com.microsoft:timeout", Kind.TIMEOUT),
        ("status:408", Kind.TIMEOUT),
        ("com.microsoft:entity-disabled", Kind.DISABLED),
        ("amqp:resource-limit-exceeded", Kind.FULL),
        ("amqp:link:message-size-exceeded", Kind.TOO_LARGE),
        ("amqp:link:detach-forced", Kind.COMMUNICATION),
        ("amqp:connection:forced", Kind.COMMUNICATION),
        ("com.microsoft:argument-error", Kind.INVALID),
        ("amqp:internal-error", Kind.INTERNAL),
        ("com.example:never-heard-of", Kind.INTERNAL),
    ],
)
def test_conditions_of_the_wire_become_kinds(condition: str, kind: Kind) -> None:
    """An unknown condition is taken for trouble of the service, which counts: a new condition must not stop
    failover.
    """
    assert kind_of_condition(condition) is kind
