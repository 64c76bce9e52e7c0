"""ServiceBusAdministrationClient, sync and aio: queues are made, read, listed, changed, removed and counted."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.management import EntityStatus

from tests.brokers import BrokerProcess
from tests.sdk.flavours import Admin, Flavour, Sdk, receive, receive_one

pytestmark = pytest.mark.asyncio(loop_scope="session")
MINUTE = datetime.timedelta(minutes=1)
DAY = datetime.timedelta(days=1)
YEARS = datetime.timedelta(days=3650)
HOUR = datetime.timedelta(hours=1)


def _name() -> str:
    return f"admin-{uuid.uuid4().hex[:12]}"


async def test_a_new_queue_has_the_defaults_of_the_service(sdk_admin: Admin) -> None:
    """Azure's documentation promises these defaults for a queue made with nothing but its name."""
    name = _name()
    created = await sdk_admin.calls.create_queue(name)
    read = await sdk_admin.calls.get_queue(name)
    for queue in (created, read):
        assert queue.name == name
        assert queue.lock_duration == MINUTE
        assert queue.max_size_in_megabytes == 1024
        assert queue.max_delivery_count == 10
        assert queue.duplicate_detection_history_time_window == 10 * MINUTE
        assert (queue.requires_duplicate_detection, queue.requires_session) == (False, False)
        assert (queue.dead_lettering_on_message_expiration, queue.enable_partitioning) == (False, False)
        assert queue.enable_batched_operations is True
        assert queue.status == EntityStatus.ACTIVE
        # The service writes "unlimited" as the largest number of days it knows: 10675199.
        assert isinstance(queue.default_message_time_to_live, datetime.timedelta)
        assert isinstance(queue.auto_delete_on_idle, datetime.timedelta)
        assert queue.default_message_time_to_live > 1000 * YEARS
        assert queue.auto_delete_on_idle > 1000 * YEARS
        assert not queue.forward_to
        assert not queue.forward_dead_lettered_messages_to
        assert not queue.user_metadata


SETTINGS: dict[str, Any] = {
    "lock_duration": datetime.timedelta(seconds=42),
    "max_size_in_megabytes": 5120,
    "max_delivery_count": 2_147_483_647,
    "default_message_time_to_live": DAY + HOUR,
    "dead_lettering_on_message_expiration": True,
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": 5 * MINUTE,
    "enable_batched_operations": False,
    "auto_delete_on_idle": 2 * DAY,
    "user_metadata": "<owner & co> “grüße”",
    "max_message_size_in_kilobytes": 2048,
    "status": EntityStatus.SEND_DISABLED,
}


async def test_every_setting_is_kept(sdk_admin: Admin) -> None:
    """As it was given, through XML and back."""
    name = _name()
    await sdk_admin.calls.create_queue(name, **SETTINGS)
    queue = await sdk_admin.calls.get_queue(name)
    assert {setting: getattr(queue, setting) for setting in SETTINGS} == SETTINGS


async def test_settings_can_be_changed(sdk_admin: Admin) -> None:
    """The client reads a description, changes it and writes it whole; what it did not touch stays."""
    name = _name()
    await sdk_admin.calls.create_queue(name, requires_duplicate_detection=True, user_metadata="kept")
    queue = await sdk_admin.calls.get_queue(name)
    queue.lock_duration = datetime.timedelta(seconds=13)
    queue.max_delivery_count = 7
    queue.default_message_time_to_live = DAY
    queue.dead_lettering_on_message_expiration = True
    queue.status = EntityStatus.RECEIVE_DISABLED
    await sdk_admin.calls.update_queue(queue)
    changed = await sdk_admin.calls.get_queue(name)
    assert changed.lock_duration == datetime.timedelta(seconds=13)
    assert changed.max_delivery_count == 7
    assert changed.default_message_time_to_live == DAY
    assert changed.dead_lettering_on_message_expiration is True
    assert changed.status == EntityStatus.RECEIVE_DISABLED
    assert changed.requires_duplicate_detection is True
    assert changed.user_metadata == "kept"
    assert isinstance(changed.auto_delete_on_idle, datetime.timedelta)
    assert changed.auto_delete_on_idle > 1000 * YEARS


async def test_an_existing_queue_is_not_made_again(sdk_admin: Admin) -> None:
    """Not under another spelling either, whatever else is wrong with the request; what is there stays as it is."""
    name = _name()
    await sdk_admin.calls.create_queue(name, max_delivery_count=3)
    wrong: dict[str, Any] = {"max_size_in_megabytes": -1}
    for spelling, settings in ((name, {}), (name.upper(), {}), (name, wrong)):
        with pytest.raises(ResourceExistsError):
            await sdk_admin.calls.create_queue(spelling, **settings)
    assert (await sdk_admin.calls.get_queue(name)).max_delivery_count == 3


async def test_a_missing_queue_is_not_found(sdk_admin: Admin) -> None:
    """By each of the calls."""
    name = _name()
    await sdk_admin.calls.create_queue(name)
    queue = await sdk_admin.calls.get_queue(name)
    await sdk_admin.calls.delete_queue(name)
    with pytest.raises(ResourceNotFoundError):
        await sdk_admin.calls.get_queue(name)
    with pytest.raises(ResourceNotFoundError):
        await sdk_admin.calls.get_queue_runtime_properties(name)
    with pytest.raises(ResourceNotFoundError):
        await sdk_admin.calls.delete_queue(name)
    with pytest.raises(ResourceNotFoundError):
        await sdk_admin.calls.update_queue(queue)


BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "lock too long": {"lock_duration": 10 * MINUTE},
    "no delivery at all": {"max_delivery_count": 0},
    "no size": {"max_size_in_megabytes": 0},
    "idle too short": {"auto_delete_on_idle": MINUTE},
    "duplicate window too long": {"duplicate_detection_history_time_window": 8 * DAY},
}


@pytest.mark.parametrize("settings", BAD_SETTINGS.values(), ids=BAD_SETTINGS.keys())
async def test_a_setting_out_of_range_is_refused_with_its_name(sdk_admin: Admin, settings: dict[str, Any]) -> None:
    """A bad request whose text says which setting; nothing is made."""
    name = _name()
    with pytest.raises(HttpResponseError) as refused:
        await sdk_admin.calls.create_queue(name, **settings)
    assert refused.value.status_code == 400
    assert name in str(refused.value)
    with pytest.raises(ResourceNotFoundError):
        await sdk_admin.calls.get_queue(name)


@pytest.mark.parametrize("name", ["x" * 261, "-begins-badly", "ends-badly-", "has space", "a//b"])
async def test_a_bad_path_is_refused(sdk_admin: Admin, name: str) -> None:
    """Letters, digits, dots, dashes, underscores and slashes; 260 of them at most."""
    with pytest.raises(HttpResponseError) as refused:
        await sdk_admin.calls.create_queue(name)
    assert refused.value.status_code == 400


@pytest.mark.slow
async def test_more_than_one_page_of_queues_is_listed(broker: BrokerProcess, flavour: Flavour) -> None:
    """The client asks for 100 at a time; each queue comes once. The other namespace is ours alone."""
    admin = Admin(flavour, broker.connection_string("fabrikam"), broker.ca_file)
    prefix = f"{flavour}-{uuid.uuid4().hex[:6]}-"
    names = [f"{prefix}{i:03}" for i in range(205)]
    for name in names:
        await admin.calls.create_queue(name)
    listed = [queue.name for queue in await admin.list_queues() if queue.name.startswith(prefix)]
    counted = [queue.name for queue in await admin.list_queues_runtime_properties() if queue.name.startswith(prefix)]
    for name in names:
        await admin.calls.delete_queue(name)
    left = [queue.name for queue in await admin.list_queues() if queue.name.startswith(prefix)]
    await admin.close()
    assert sorted(listed) == names
    assert sorted(counted) == names
    assert left == []


async def test_counts_are_true_in_every_state(sdk: Sdk, sdk_admin: Admin) -> None:
    """Waiting, locked, scheduled, dead-lettered and deferred messages, and none after they are consumed."""
    name = _name()
    await sdk_admin.calls.create_queue(name)
    began = datetime.datetime.now(datetime.UTC)

    async def counts() -> tuple[int | None, ...]:
        found = await sdk_admin.calls.get_queue_runtime_properties(name)
        return (
            found.active_message_count,
            found.scheduled_message_count,
            found.dead_letter_message_count,
            found.total_message_count,
        )

    assert await counts() == (0, 0, 0, 0)
    sender, receiver = await sdk.pair(name)
    await sender.send_messages([ServiceBusMessage("x" * 1000) for _ in range(5)], timeout=10)
    assert await counts() == (5, 0, 0, 5)
    [scheduled] = await sender.schedule_messages(ServiceBusMessage("s"), began + HOUR, timeout=10)
    assert await counts() == (5, 1, 0, 6)
    first, second, third = await receive(receiver, 3)
    assert await counts() == (5, 1, 0, 6)
    await receiver.complete_message(first)
    assert await counts() == (4, 1, 0, 5)
    await receiver.dead_letter_message(second)
    assert await counts() == (3, 1, 1, 5)
    runtime = await sdk_admin.calls.get_queue_runtime_properties(name)
    assert runtime.size_in_bytes is not None
    assert 4000 < runtime.size_in_bytes < 8000
    assert runtime.created_at_utc is not None
    assert runtime.updated_at_utc is not None
    assert abs(runtime.created_at_utc - began) < MINUTE
    assert runtime.transfer_message_count == 0
    assert runtime.transfer_dead_letter_message_count == 0

    await receiver.defer_message(third)
    assert (await counts())[1:] == (1, 1, 5)  # a deferred message is still in the total
    [deferred] = await receiver.receive_deferred_messages(third.sequence_number or 0, timeout=10)
    await receiver.complete_message(deferred)
    assert await counts() == (2, 1, 1, 4)
    await sender.cancel_scheduled_messages(scheduled, timeout=10)
    for message in await receive(receiver, 2):
        await receiver.complete_message(message)
    assert await counts() == (0, 0, 1, 1)
    dead = await sdk.receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    await dead.complete_message(await receive_one(dead))
    assert await counts() == (0, 0, 0, 0)
    runtime = await sdk_admin.calls.get_queue_runtime_properties(name)
    assert runtime.size_in_bytes == 0


async def test_partitioned_queue_shows_its_flag(sdk_admin: Admin) -> None:
    """Partitions are accepted everywhere; the broker itself has none."""
    name = _name()
    assert (await sdk_admin.calls.create_queue(name, enable_partitioning=True)).enable_partitioning is True
    assert (await sdk_admin.calls.get_queue(name)).enable_partitioning is True


async def test_the_namespace_describes_itself(sdk_admin: Admin) -> None:
    """The name of the namespace is the one from the command line."""
    properties = await sdk_admin.calls.get_namespace_properties()
    assert properties.name == "contoso"
