"""Pairing time as a plan: the commands that it gives, for every answer that a secondary can make."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from pairbus.pairing.provision import (
    ATTEMPTS,
    PAUSE_S,
    SETTINGS,
    Create,
    Found,
    List,
    Provisioned,
    ProvisionPause,
    ProvisionRefusal,
    assumed,
    provisioning,
)

NAME = "contoso"


def path(index: int) -> str:
    return f"contoso/x-servicebus-transfer/{index}"


class Secondary:
    """Carries out a plan: some queues are there, and creations fail so many times before they succeed."""

    def __init__(
        self, *queues: Found, failures: Mapping[int, int] | None = None, refusal: ProvisionRefusal | None = None
    ) -> None:
        self.queues = list(queues)
        self.failures = {path(index): times for index, times in (failures or {}).items()}
        self.refusal = refusal or ProvisionRefusal("no room")
        self.tried: list[str] = []
        self.waited_s = 0.0

    def pair(self, count: int, *, patient: bool = True) -> Provisioned:
        plan = provisioning(NAME, count, patient=patient)
        answer: list[Found] | ProvisionRefusal | None = None
        while True:
            try:
                command = plan.send(answer)
            except StopIteration as end:
                assert isinstance(end.value, Provisioned)
                return end.value
            match command:
                case List(prefix):
                    assert prefix == "contoso/x-servicebus-transfer/" and not self.tried
                    answer = self.queues
                case Create(wanted, settings):
                    assert settings is SETTINGS
                    self.tried.append(wanted)
                    answer = self.refusal if self.tried.count(wanted) <= self.failures.get(wanted, 0) else None
                case ProvisionPause(seconds):
                    self.waited_s += seconds
                    answer = None


def test_missing_queues_are_created_in_order() -> None:
    """Existing queues are used as they are."""
    secondary = Secondary(Found(path(1), 7))
    result = secondary.pair(3)
    assert result == Provisioned((path(0), path(1), path(2)), created=(path(0), path(2)))
    assert secondary.tried == [path(0), path(2)] and secondary.waited_s == 0


def test_a_pair_that_is_complete_creates_nothing() -> None:
    """Every start of every client comes this way."""
    secondary = Secondary(*(Found(path(index), 0) for index in range(3)))
    assert secondary.pair(3) == Provisioned((path(0), path(1), path(2))) and secondary.tried == []


def test_queues_of_another_name_are_not_ours() -> None:
    """A path that only looks like a backlog queue of this pair is not ours either."""
    secondary = Secondary(*(Found(f"contoso/x-servicebus-transfer/{tail}", 1) for tail in ("00", "x", "1/y", "")))
    assert secondary.pair(1) == Provisioned((path(0),), created=(path(0),))


def test_a_path_in_another_case_is_the_same_queue() -> None:
    """The service compares without case; the path is used as the service writes it."""
    secondary = Secondary(Found("Contoso/X-ServiceBus-Transfer/0", 0))
    assert secondary.pair(1) == Provisioned(("Contoso/X-ServiceBus-Transfer/0",))


def test_extra_queues_are_left_alone_and_told_of_when_not_empty() -> None:
    """Messages in them would wait for ever, because no syphon of this client reads them."""
    result = Secondary(Found(path(0), 5), Found(path(1), 0), Found(path(2), 3)).pair(1)
    assert result.paths == (path(0),)
    [warning] = result.warnings
    assert path(2) in warning and "3 messages" in warning and "backlog_queue_count=1" in warning


def test_a_failing_creation_is_tried_three_times_30_seconds_apart() -> None:
    """The others do not wait for it one by one: a round is one pause."""
    secondary = Secondary(failures={0: 2, 2: 1})
    result = secondary.pair(3)
    assert result.paths == (path(0), path(1), path(2)) and result.left_out == ()
    assert secondary.tried == [path(0), path(1), path(2), path(0), path(2), path(0)]
    assert secondary.waited_s == 2 * PAUSE_S == 60


def test_queues_that_cannot_be_created_are_left_out_with_their_reason() -> None:
    """The pair works with the others."""
    result = Secondary(failures={1: ATTEMPTS}).pair(3)
    assert result.paths == (path(0), path(2)) and result.left_out == ((path(1), "no room"),)
    assert any(path(1) in warning and "no room" in warning for warning in result.warnings)


def test_client_does_not_wait_for_a_queue_while_there_is_another() -> None:
    """A minute of pauses would hold its first send, although nine of ten queues are there."""
    secondary = Secondary(failures={1: ATTEMPTS})
    result = secondary.pair(10, patient=False)
    assert len(result.paths) == 9 and result.left_out == ((path(1), "no room"),)
    assert secondary.waited_s == 0
    alone = Secondary(failures={0: 2})
    assert alone.pair(1, patient=False).paths == (path(0),) and alone.waited_s == 2 * PAUSE_S


def test_without_the_manage_claim_nothing_is_tried_again() -> None:
    """Half a minute later the key is the same."""
    secondary = Secondary(failures={0: 1}, refusal=ProvisionRefusal("Manage claim required", unauthorized=True))
    result = secondary.pair(3)
    assert result.unauthorized == "Manage claim required" and result.paths == ()
    assert secondary.tried == [path(0)] and secondary.waited_s == 0


def test_without_asking_anybody_all_of_them_are_assumed() -> None:
    """The least rights: somebody has created them."""
    assert assumed(NAME, 2) == [path(0), path(1)]


def test_the_settings_are_those_of_the_specification() -> None:
    """In the words of the SDK; everything else is the service's default."""
    assert dict(SETTINGS) == {
        "max_size_in_megabytes": 5120,
        "max_delivery_count": 2147483647,
        "default_message_time_to_live": "P10675199DT2H48M5.4775807S",
        "auto_delete_on_idle": "P10675199DT2H48M5.4775807S",
        "lock_duration": "PT60S",
        "dead_lettering_on_message_expiration": True,
        "enable_batched_operations": True,
    }


@given(
    there=st.sets(st.integers(0, 12)),
    count=st.integers(1, 8),
    failures=st.dictionaries(st.integers(0, 7), st.integers(0, 4)),
)
def test_every_queue_is_found_created_or_left_out(there: set[int], count: int, failures: dict[int, int]) -> None:
    """Once each, and the pauses are those of the rounds that were needed."""
    secondary = Secondary(*(Found(path(index), 0) for index in there), failures=failures)
    result = secondary.pair(count)
    left_out = [name for name, _ in result.left_out]
    assert sorted([*result.paths, *left_out]) == sorted(path(index) for index in range(count))
    assert set(result.created) == set(result.paths) - {path(index) for index in there}
    missing = [failures.get(index, 0) for index in range(count) if index not in there]
    assert secondary.waited_s == PAUSE_S * min(max(missing, default=0), ATTEMPTS - 1)
