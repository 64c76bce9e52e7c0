"""Options: every range from both sides, and what a name of the primary is made of."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from pairbus.pairing.events import Event
from pairbus.pairing.options import (
    CHOICES,
    RANGES,
    PairedNamespaceOptions,
    SendAvailabilityPairedNamespaceOptions,
    checked_name,
    factory_of,
    primary_name_of,
)
from pairbus.pairing.policy import Failure, FailurePolicy, Reaction

Options: Any = SendAvailabilityPairedNamespaceOptions  # wrong types are tried on purpose
WHOLE = {"backlog_queue_count", "healthy_pings_required", "spool_max_bytes"}
DURATIONS = sorted(set(RANGES) - WHOLE - {"max_messages_per_second"})

# option, default, least, most (None: no upper end), in the words of the specification
TABLE: list[tuple[str, float | None, float, float | None]] = [
    ("backlog_queue_count", 10, 1, 10_000),
    ("failover_interval", 60, 0, 3600),
    ("ping_primary_interval", 60, 1, 1800),
    ("syphon_retry_interval", 1, 1, 120),
    ("healthy_pings_required", 1, 1, 1_000),
    ("busy_counts_after", None, 10, None),
    ("backlog_retry_interval", 60, 1, 3600),
    ("missing_destination_grace", 900, 0, 1_209_600),
    ("duplicate_detection_window", 600, 20, 604_800),
    ("max_messages_per_second", None, 0.1, 1_000_000),
    ("attempt_timeout", 3, 0.1, 60),
    ("connect_timeout", 3, 0.1, 60),
    ("spool_max_bytes", 1 << 30, 1 << 16, None),
]


def test_the_table_below_names_every_option_that_has_a_range() -> None:
    assert [row[0] for row in TABLE] == list(RANGES)


@pytest.mark.parametrize(("name", "default"), [(row[0], row[1]) for row in TABLE])
def test_defaults(name: str, default: float | None) -> None:
    assert getattr(Options(), name) == default


@pytest.mark.parametrize(("name", "least", "most"), [(name, least, most) for name, _, least, most in TABLE])
def test_both_ends_of_a_range_are_accepted(name: str, least: float, most: float | None) -> None:
    for end in (least, least * 2 + 1 if most is None else most):
        assert getattr(Options(**{name: end}), name) == end


@pytest.mark.parametrize(("name", "least", "most"), [(name, least, most) for name, _, least, most in TABLE])
def test_beyond_a_range_the_error_names_option_value_and_range(name: str, least: float, most: float | None) -> None:
    """The error is read in a log, without the call at hand."""
    step = 1 if name in WHOLE else 0.01
    beyond = [least - step, -1] + ([] if most is None else [most + step])
    for value in beyond:
        with pytest.raises(ValueError) as raised:
            Options(**{name: value})
        text = str(raised.value)
        assert text.startswith(f"{name} is {value!r}; it must be ")
        assert (f"at least {least}" if most is None else f"{least} … {most}") in text


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("value", ["60", True, [1], nan])
def test_what_is_no_number_is_refused_by_name_value_and_range(name: str, value: Any) -> None:
    with pytest.raises(ValueError) as raised:
        Options(**{name: value})
    assert f"{name} is {value!r}" in str(raised.value)
    assert str(RANGES[name]) in str(raised.value)


@pytest.mark.parametrize("name", RANGES)
def test_none_means_never_where_that_makes_sense_and_is_refused_elsewhere(name: str) -> None:
    if RANGES[name].optional:
        assert getattr(Options(**{name: None}), name) is None
    else:
        with pytest.raises(ValueError, match=f"{name} is None"):
            Options(**{name: None})


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_count_is_a_whole_number(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} is 70000\.5; it must be a whole number"):
        Options(**{name: 70000.5})


@pytest.mark.parametrize("name", sorted(DURATIONS))
def test_a_duration_may_be_a_timedelta_and_is_kept_in_seconds(name: str) -> None:
    assert getattr(Options(**{name: timedelta(seconds=45)}), name) == 45.0


@pytest.mark.parametrize("value", [inf, nan])
def test_a_budget_is_a_number_or_none(value: float) -> None:
    """A budget of infinity cannot be counted down."""
    with pytest.raises(ValueError, match=r"it must be 0\.1 … 1000000 messages a second"):
        Options(max_messages_per_second=value)


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_names_the_alternatives(name: str) -> None:
    for choice in CHOICES[name]:
        assert getattr(Options(**{name: choice}), name) == choice
    with pytest.raises(ValueError, match=f"{name} is 'sometimes'; it must be one of {', '.join(CHOICES[name])}"):
        Options(**{name: "sometimes"})


@pytest.mark.parametrize("name", ["enable_syphon", "create_backlog_queues", "require_secondary", "ordered"])
@pytest.mark.parametrize("value", ["false", "no", 1, 0, None])
def test_what_is_no_boolean_is_refused(name: str, value: Any) -> None:
    """A text from the environment would always be true, also "false"."""
    for given in (True, False):
        assert getattr(Options(**{name: given}), name) is given
    with pytest.raises(ValueError, match=f"{name} is {value!r}; it must be True or False"):
        Options(**{name: value})


@pytest.mark.parametrize("name", ["spool_dir", "ledger"])
def test_a_folder_is_a_path_or_none(name: str) -> None:
    """An empty text is a variable that was not set, and no place for messages."""
    for folder in (None, "here", Path("here")):
        assert getattr(Options(**{name: folder}), name) == folder
    for value in ("", 5, True, b"here"):
        with pytest.raises(ValueError, match=f"{name} is {value!r}; it must be the path of a folder, or None"):
            Options(**{name: value})


def test_control_socket_is_a_choice_or_a_path() -> None:
    """True and False are answers of their own; an empty text is a variable that was not set."""
    for value in (None, True, False, "here", Path("here")):
        assert Options(control_socket=value).control_socket == value
    for wrong in ("", 5, b"here"):
        with pytest.raises(ValueError, match=f"control_socket is {wrong!r}; it must be True, False, None or the path"):
            Options(control_socket=wrong)


def test_the_environment_names_a_ledger_where_no_option_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator wants the bill of an application that was not written for it; what the application says wins."""
    monkeypatch.setenv("PAIRBUS_LEDGER", "of the operator")
    assert Options().ledger == "of the operator"
    assert Options(ledger="its own").ledger == "its own"
    monkeypatch.setenv("PAIRBUS_LEDGER", "")
    assert Options().ledger is None


def test_a_policy_has_a_reaction() -> None:
    """A policy without a reaction would fail in the night of the outage, in the middle of a send."""

    class Own:
        def reaction(self, failure: Failure) -> Reaction:
            return Reaction.COUNT

    own, usual = Own(), FailurePolicy()
    assert (Options(policy=own).policy, Options(policy=usual).policy) == (own, usual)
    others: list[Any] = ["x", {}, Own, FailurePolicy, Reaction.COUNT]
    for value in others:
        with pytest.raises(ValueError, match=f"policy is {re.escape(repr(value))}; it must be a FailurePolicy"):
            Options(policy=value)


def test_a_listener_is_a_plain_function() -> None:
    """The client would not await the result of a coroutine function, so no event would ever be told."""

    async def later(event: Event) -> None: ...

    class Later:
        async def __call__(self, event: Event) -> None: ...

    assert Options(on_event=print).on_event is print
    for value in ("x", 5):
        with pytest.raises(ValueError, match=f"on_event is {value!r}; it must be a function that takes an event"):
            Options(on_event=value)
    for awaited in (later, partial(later), Later(), Later().__call__):
        with pytest.raises(ValueError, match=r"on_event is .*; it must be a plain function, .*events\(\)"):
            Options(on_event=awaited)


def test_the_failover_interval_belongs_to_the_base() -> None:
    assert issubclass(Options, PairedNamespaceOptions)
    assert PairedNamespaceOptions().failover_interval == 60.0
    with pytest.raises(ValueError, match=r"failover_interval is 3601; it must be 0 … 3600 s"):
        PairedNamespaceOptions(3601)


def test_constructor_needs_options_with_a_client_of_the_secondary() -> None:
    assert factory_of(Options(messaging_factory="factory")) == "factory"
    with pytest.raises(ValueError, match=r"options\.messaging_factory is None; it must be the ServiceBusClient"):
        factory_of(Options())
    others: list[Any] = [None, {}, "factory", PairedNamespaceOptions()]
    for value in others:
        with pytest.raises(TypeError, match=f"options must be SendAvailability.*Options, not {type(value).__name__}"):
            factory_of(value)


def test_the_first_five_are_positional_as_in_the_original() -> None:
    options = Options("manager", "factory", 5, timedelta(minutes=2), True)
    assert options.secondary_namespace_manager == "manager"
    assert options.messaging_factory == "factory"
    assert (options.backlog_queue_count, options.failover_interval, options.enable_syphon) == (5, 120.0, True)


@pytest.mark.parametrize(
    ("authority", "name"),
    [
        ("contoso.servicebus.windows.net", "contoso"),
        ("Contoso.servicebus.windows.net:5671", "contoso"),
        ("contoso.servicebus.windows.net/", "contoso"),
        ("broker:5672", "broker"),
        ("127.0.0.1:5672", "127-0-0-1-5672"),
        ("127.0.0.1", "127-0-0-1"),
        ("localhost:5672", "localhost-5672"),
        ("localhost", "localhost"),
        ("[::1]:5672", "1-5672"),
        ("[fe80::1:2]", "fe80-1-2"),
    ],
)
def test_the_name_of_the_primary_is_derived_from_its_authority(authority: str, name: str) -> None:
    """Senders and syphons that are given the same address must find the same queues."""
    assert primary_name_of(authority) == name


@pytest.mark.parametrize("name", ["a", "contoso", "a-b.c_d", "0", "x" * 200])
def test_a_legal_segment_is_a_name(name: str) -> None:
    assert checked_name(name) == name
    assert Options(primary_name=name).primary_name == name


@pytest.mark.parametrize("name", ["", "-a", "a.", "a/b", "a b", "ä", "a\n", "x" * 201, 5, b"a"])
def test_what_is_no_path_segment_is_no_name(name: Any) -> None:
    with pytest.raises(ValueError, match="primary_name is "):
        Options(primary_name=name)
