"""The genuine administration clients against the administration application."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import AuthorizationRule, ServiceBusAdministrationClient

from pairbus.auth.sas import SharedAccessKey, sign
from pairbus.broker.description import QueueDescription, TopicDescription
from pairbus.errors import StoreError, StoreFull
from tests.broker.admin_world import LISTEN_KEY, ROOT_KEY, SEND_KEY, AdminServer, serve

UNLIMITED = timedelta(days=10_675_199)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    with serve(tmp_path_factory.mktemp("admin")) as server:
        yield server


@pytest.fixture
def server(running: AdminServer) -> AdminServer:
    running.namespace.forget_tests()
    running.namespace.planned_error = None
    return running


@pytest.fixture
def client(server: AdminServer) -> Iterator[ServiceBusAdministrationClient]:
    with connect(server) as client:
        yield client


def connect(server: AdminServer, key: SharedAccessKey = ROOT_KEY, **options: Any) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        server.connection_string(key), connection_verify=server.ca_file, retry_total=0, **options
    )


def test_a_queue_is_created_with_the_services_defaults(client: ServiceBusAdministrationClient) -> None:
    """Code that relies on a default of the service must not behave differently here."""
    queue = client.create_queue("Orders")
    assert queue.name == "Orders"
    assert queue.lock_duration == timedelta(minutes=1)
    assert queue.max_size_in_megabytes == 1024
    assert queue.max_delivery_count == 10
    assert queue.duplicate_detection_history_time_window == timedelta(minutes=10)
    assert isinstance(queue.default_message_time_to_live, timedelta)
    assert queue.default_message_time_to_live >= UNLIMITED
    assert queue.status == "Active"
    assert queue.availability_status == "Available"
    assert not queue.requires_session
    assert not queue.forward_to


def test_every_setting_of_a_queue_survives_the_way_there_and_back(client: ServiceBusAdministrationClient) -> None:
    """Pairing creates backlog queues with particular settings and trusts that they hold."""
    client.create_queue(
        "contoso/x-servicebus-transfer/0",
        lock_duration=timedelta(seconds=90),
        max_size_in_megabytes=5120,
        default_message_time_to_live="P1DT2H3M4.5S",
        dead_lettering_on_message_expiration=True,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(seconds=20),
        max_delivery_count=2_147_483_647,
        enable_batched_operations=False,
        user_metadata="<ours> & 'yours'",
        auto_delete_on_idle=timedelta(days=3),
        enable_express=True,
        max_message_size_in_kilobytes=102_400,
        status="SendDisabled",
    )
    queue = client.get_queue("CONTOSO/x-servicebus-transfer/0")
    assert queue.lock_duration == timedelta(seconds=90)
    assert queue.max_size_in_megabytes == 5120
    assert queue.default_message_time_to_live == timedelta(days=1, hours=2, minutes=3, seconds=4.5)
    assert queue.dead_lettering_on_message_expiration
    assert queue.requires_duplicate_detection
    assert queue.duplicate_detection_history_time_window == timedelta(seconds=20)
    assert queue.max_delivery_count == 2_147_483_647
    assert queue.enable_batched_operations is False
    assert queue.user_metadata == "<ours> & 'yours'"
    assert queue.auto_delete_on_idle == timedelta(days=3)
    assert queue.enable_express
    assert queue.max_message_size_in_kilobytes == 102_400
    assert queue.status == "SendDisabled"


def test_runtime_properties_tell_true_counts(client: ServiceBusAdministrationClient, server: AdminServer) -> None:
    """Monitoring and the demo read them."""
    began = datetime.now(UTC)
    client.create_queue("q")
    server.namespace.counts["q"] = {"accessed_ms": 0}
    runtime: Any = client.get_queue_runtime_properties("q")
    assert runtime.accessed_at_utc.year == 1, "the year 1 means: never accessed"
    server.namespace.counts["q"] = {
        "active": 1,
        "dead_lettered": 2,
        "scheduled": 4,
        "deferred": 8,
        "size_bytes": 999,
        "accessed_ms": 1_800_000_000_000,
    }
    runtime = client.get_queue_runtime_properties("q")
    assert runtime.active_message_count == 1
    assert runtime.dead_letter_message_count == 2
    assert runtime.scheduled_message_count == 4
    assert runtime.transfer_message_count == runtime.transfer_dead_letter_message_count == 0
    assert runtime.total_message_count == 15
    assert runtime.size_in_bytes == 999
    assert runtime.accessed_at_utc.isoformat() == "2027-01-15T08:00:00+00:00"
    assert abs(runtime.created_at_utc - began) < timedelta(minutes=1)


@pytest.mark.parametrize("count", [0, 100, 101, 250])
def test_a_listing_has_every_queue_once_over_any_number_of_pages(
    client: ServiceBusAdministrationClient, server: AdminServer, count: int
) -> None:
    """The service gives 100 at a time; the SDK follows the second link of the feed or stops silently."""
    expected = [f"q{number:04}/sub.path" for number in range(count)]
    for path in expected:
        server.namespace.add(path)
    assert [queue.name for queue in client.list_queues()] == expected
    assert [queue.name for queue in client.list_queues_runtime_properties()] == expected


def test_an_update_changes_what_was_changed_and_keeps_the_rest(client: ServiceBusAdministrationClient) -> None:
    """The SDK writes back what it has read; it spells 'unlimited' differently than it read it."""
    queue = client.create_queue(
        "q", max_size_in_megabytes=2048, user_metadata="old", max_message_size_in_kilobytes=2048
    )
    queue.lock_duration = timedelta(seconds=5)
    queue.status = "Disabled"
    queue.user_metadata = None
    client.update_queue(queue)
    read = client.get_queue("q")
    assert read.lock_duration == timedelta(seconds=5)
    assert read.status == "Disabled"
    assert not read.user_metadata
    assert read.max_size_in_megabytes == 2048
    assert read.max_message_size_in_kilobytes == 2048
    assert isinstance(read.default_message_time_to_live, timedelta)
    assert read.default_message_time_to_live >= UNLIMITED
    runtime: Any = client.get_queue_runtime_properties("q")
    assert runtime.updated_at_utc > runtime.created_at_utc


@pytest.mark.parametrize("setting", ["requires_session", "requires_duplicate_detection", "enable_partitioning"])
def test_a_setting_that_is_fixed_at_creation_cannot_be_updated(
    client: ServiceBusAdministrationClient, setting: str
) -> None:
    """Accepting it without effect would be a lie; messages already stored were never checked for duplicates."""
    queue = client.create_queue("q")
    setattr(queue, setting, True)
    with pytest.raises(HttpResponseError, match="fixed at creation") as caught:
        client.update_queue(queue)
    assert caught.value.status_code == 400


def test_a_deleted_queue_is_gone(client: ServiceBusAdministrationClient, server: AdminServer) -> None:
    """Deleting the queue again raises the error for a missing entity."""
    client.create_queue("q")
    client.delete_queue("Q")
    assert not server.namespace.catalog.queues
    with pytest.raises(ResourceNotFoundError):
        client.delete_queue("q")


def test_a_missing_queue_is_a_resource_not_found_error(client: ServiceBusAdministrationClient) -> None:
    """The class that applications catch."""
    with pytest.raises(ResourceNotFoundError):
        client.get_queue("missing")
    with pytest.raises(ResourceNotFoundError):
        client.get_queue_runtime_properties("missing")
    client.create_queue("q")
    queue = client.get_queue("q")
    client.delete_queue("q")
    with pytest.raises(ResourceNotFoundError):
        client.update_queue(queue)


def test_creating_twice_is_a_resource_exists_error(client: ServiceBusAdministrationClient) -> None:
    """Losing a creation race is success for pairing, so the class must be right; case does not matter."""
    client.create_queue("q", max_delivery_count=3)
    with pytest.raises(ResourceExistsError):
        client.create_queue("Q", max_delivery_count=4)
    assert client.get_queue("q").max_delivery_count == 3


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"lock_duration": timedelta(minutes=6)}, "LockDuration of"),
        ({"lock_duration": "P10675199DT2H48M5.4775807S"}, "LockDuration"),
        ({"default_message_time_to_live": "P1M"}, "DefaultMessageTimeToLive"),
        ({"max_size_in_megabytes": 0}, "MaxSizeInMegabytes of"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount of"),
        ({"status": "Sleeping"}, "Status of"),
        ({"forward_to": "other"}, "ForwardTo of"),
        ({"forward_dead_lettered_messages_to": "other"}, "ForwardDeadLetteredMessagesTo of"),
        ({"authorization_rules": [AuthorizationRule(key_name="k", rights=[])]}, "AuthorizationRules of"),
    ],
)
def test_a_wrong_setting_is_named_in_the_error(
    client: ServiceBusAdministrationClient, server: AdminServer, settings: dict[str, Any], named: str
) -> None:
    """The SDK shows the detail of the answer as the message of its exception."""
    with pytest.raises(HttpResponseError, match=named) as caught:
        client.create_queue("q", **settings)
    assert caught.value.status_code == 400
    assert not server.namespace.catalog.queues


@pytest.mark.parametrize("path", ["a" * 261, "white space", "a//b", "a/../b", "-a", "ümlaut", "a\0b"])
def test_a_path_that_cannot_be_is_refused(client: ServiceBusAdministrationClient, path: str) -> None:
    """Paths that XML could not carry in the text of an error are refused too."""
    with pytest.raises(HttpResponseError, match="path") as caught:
        client.create_queue(path)
    assert caught.value.status_code == 400


def test_a_path_of_260_characters_is_fine(client: ServiceBusAdministrationClient) -> None:
    """The documented limit."""
    path = "/".join(["segment"] * 32 + ["last"])
    assert len(path) == 260
    client.create_queue(path)
    assert client.get_queue(path.upper()).name == path.upper()
    assert [queue.name for queue in client.list_queues()] == [path]


def test_the_namespace_describes_itself(client: ServiceBusAdministrationClient) -> None:
    """Management tools ask for it when they connect."""
    properties = client.get_namespace_properties()
    assert properties.name == "contoso"
    assert properties.namespace_type == "Messaging"
    assert properties.messaging_sku == "Premium"


def test_limits_of_messages_are_those_of_the_tier(client: ServiceBusAdministrationClient) -> None:
    """Premium: 1 MB unless the entity says otherwise, from 1 to 100 MB."""
    assert client.create_queue("usual").max_message_size_in_kilobytes == 1024
    assert client.create_topic("usual-topic").max_message_size_in_kilobytes == 1024
    for size in (256, 1023, 102_401):
        with pytest.raises(HttpResponseError, match=r"MaxMessageSizeInKilobytes.*1024 to 102400"):
            client.create_queue("odd", max_message_size_in_kilobytes=size)


def test_stored_entity_of_a_lower_limit_gets_that_of_the_tier() -> None:
    """Earlier releases allowed any number: their entities can be changed like others."""
    for kind in (QueueDescription, TopicDescription):
        read = kind.from_values({"path": "old", "max_message_size_kb": 256})
        assert read.max_message_size_kb == 1024 and read.checked() == read
        assert kind.from_values({"path": "old", "max_message_size_kb": 4096}).max_message_size_kb == 4096


@pytest.mark.parametrize(
    "key", [SharedAccessKey(ROOT_KEY.name, "wrong"), SharedAccessKey("nobody", "SAS_KEY_VALUE")], ids=["key", "name"]
)
def test_a_wrong_key_is_an_authentication_error(server: AdminServer, key: SharedAccessKey) -> None:
    """For reading as for writing."""
    with connect(server, key) as client:
        with pytest.raises(ClientAuthenticationError):
            client.get_queue("q")
        with pytest.raises(ClientAuthenticationError):
            client.create_queue("q")
    assert not server.namespace.catalog.queues


@pytest.mark.parametrize("key", [LISTEN_KEY, SEND_KEY], ids=["listen", "send"])
def test_reading_and_writing_need_manage(server: AdminServer, key: SharedAccessKey) -> None:
    """As on Azure. Spec §3: pairing without Manage on the secondary fails when it creates."""
    server.namespace.add("q")
    calls: list[Callable[[ServiceBusAdministrationClient], object]] = [
        lambda client: client.get_queue("q"),
        lambda client: list(client.list_queues()),
        lambda client: list(client.list_topics()),
        lambda client: client.get_namespace_properties(),
        lambda client: client.create_queue("other"),
        lambda client: client.delete_queue("q"),
    ]
    with connect(server, key) as client:
        for call in calls:
            with pytest.raises(ClientAuthenticationError):
                call(client)
    assert list(server.namespace.catalog.queues) == ["q"]


def test_a_connection_string_with_a_signature_works_within_its_scope(server: AdminServer) -> None:
    """Python sends it as `Bearer SharedAccessSignature …`."""
    server.namespace.add("q")
    server.namespace.add("q2")
    token = sign("sb://elsewhere:1/q/", ROOT_KEY.name, ROOT_KEY.key, 4_000_000_000)
    text = f"Endpoint=sb://localhost:{server.port};SharedAccessSignature={token};UseDevelopmentEmulator=true"
    with ServiceBusAdministrationClient.from_connection_string(
        text, connection_verify=server.ca_file, retry_total=0
    ) as client:
        assert client.get_queue("q").name == "q"
        with pytest.raises(ClientAuthenticationError):
            client.get_queue("q2")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (StoreFull("the disk is full"), 403, "the disk is full"),
        (StoreError("cannot write"), 500, "cannot write"),
        (RuntimeError("secret of the house"), 500, "internal error"),
    ],
)
def test_a_failing_store_is_an_answer_and_never_a_traceback(
    client: ServiceBusAdministrationClient, server: AdminServer, error: Exception, status: int, text: str
) -> None:
    """Errors nobody foresaw go to the log; the client learns only that there was one."""
    server.namespace.planned_error = error
    with pytest.raises(HttpResponseError, match=text) as caught:
        client.create_queue("q")
    assert caught.value.status_code == status
    assert "secret" not in str(caught.value)


async def test_the_asynchronous_client_does_the_same(server: AdminServer) -> None:
    """The asynchronous client has another HTTP library, with its own view of certificates and of encoded slashes."""
    async with AsyncAdministrationClient.from_connection_string(
        server.connection_string(host="127.0.0.1"), connection_verify=server.ca_file, retry_total=0
    ) as client:
        queue = await client.create_queue("contoso/x-servicebus-transfer/0", max_delivery_count=7)
        assert queue.max_delivery_count == 7
        queue.max_delivery_count = 8
        await client.update_queue(queue)
        assert (await client.get_queue("contoso/x-servicebus-transfer/0")).max_delivery_count == 8
        assert (await client.get_queue_runtime_properties(queue.name)).total_message_count == 0
        for number in range(150):
            server.namespace.add(f"q{number:03}")
        assert len([found async for found in client.list_queues()]) == 151
        with pytest.raises(ResourceExistsError):
            await client.create_queue("q000")
        await client.delete_queue(queue.name)
        with pytest.raises(ResourceNotFoundError):
            await client.get_queue(queue.name)


def test_a_client_that_does_not_know_the_authority_refuses_the_broker(server: AdminServer) -> None:
    """The certificate is really checked: without this the TLS tests above would prove nothing."""
    with (
        ServiceBusAdministrationClient.from_connection_string(server.connection_string(), retry_total=0) as client,
        pytest.raises(ServiceRequestError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.get_queue("q")
