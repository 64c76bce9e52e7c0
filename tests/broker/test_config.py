"""The configuration file: existing files are read; an error is told with its place in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pairbus.auth.sas import LISTEN, MANAGE, SEND
from pairbus.broker.config.file import NamespaceConfig, load_config, parse_config
from pairbus.broker.description import SubscriptionDescription, TopicDescription
from pairbus.errors import ConfigError
from pairbus.filters import CorrelationFilter, SqlAction, SqlFilter
from pairbus.settings.durations import DAY_MS

EMULATOR_FILE = """\ufeff{
  // shipped with the emulator
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1", /* "Name": "not this one", */
            "Properties": {
              "DeadLetteringOnMessageExpiration": true,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M30S",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": true,
              "RequiresSession": false,
            },
          },
          {"Name": "contoso/x-servicebus-transfer/0"},
        ],
        "Topics": []
      }
    ],
    "Logging": {"Type": "File"}
  }
}
"""


def queue_config(properties: dict[str, Any]) -> str:
    queue = {"Name": "orders", "Properties": properties}
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [queue]}]}})


def namespace_config(**members: Any) -> str:
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": "contoso", **members}]}})


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "my.json")
    return str(caught.value)


def test_a_file_of_the_official_emulator_is_read_as_it_is(tmp_path: Path) -> None:
    """The file has comments, trailing commas, a byte order mark and empty strings."""
    file = tmp_path / "Config.json"
    file.write_text(EMULATOR_FILE, encoding="utf-8")
    (namespace,) = load_config(file)
    assert namespace.name == "sbemulatorns"
    assert namespace.keys == []
    first, second = namespace.queues
    assert first.path == "queue.1"
    assert first.dead_letter_on_expiration
    assert first.default_ttl_ms == 3_600_000
    assert first.duplicate_window_ms == 20_000
    assert first.lock_duration_ms == 90_000
    assert first.max_delivery_count == 3
    assert first.requires_duplicate_detection
    assert first.forward_to is None
    assert (second.path, second.max_delivery_count) == ("contoso/x-servicebus-transfer/0", 10)


def test_comment_marks_and_commas_inside_texts_are_texts() -> None:
    """Keys are base64 and contain slashes."""
    text = '{"UserConfig": {"Namespaces": [{"Name": "n", "Keys": [{"Name": "a,]", "Key": "x//y/*z*/\\",}"}]}]}}'
    (key,) = parse_config(text, "f")[0].keys
    assert (key.name, key.key) == ("a,]", 'x//y/*z*/",}')


def test_keys_have_names_texts_and_rights() -> None:
    """Our extension; without rights a key may do everything, as the root key does."""
    keys = [
        {"Name": "app", "Key": "k", "SecondaryKey": "k2", "Rights": ["Send", "Listen"]},
        {"Name": "root", "Key": "r"},
    ]
    app, root = parse_config(namespace_config(Keys=keys), "f")[0].keys
    assert (app.name, app.key, app.secondary_key) == ("app", "k", "k2")
    assert app.rights == {SEND, LISTEN}
    assert root.rights == {SEND, LISTEN, MANAGE}


def test_operations_per_second_belong_to_the_namespace() -> None:
    """OperationsPerSecond is our extension; a namespace without it has no limit."""
    assert parse_config(namespace_config(OperationsPerSecond=2.5), "f")[0].operations_per_s == 2.5
    assert parse_config(namespace_config(), "f")[0].operations_per_s is None


def test_sizes_and_idle_time_can_be_set_beyond_what_the_emulator_knows() -> None:
    """The emulator has fixed quotas; ours are settings."""
    text = queue_config({"MaxSizeInMegabytes": 5120, "MaxMessageSizeInKilobytes": 1024, "AutoDeleteOnIdle": "P1D"})
    (queue,) = parse_config(text, "f")[0].queues
    assert (queue.max_size_mb, queue.max_message_size_kb, queue.auto_delete_on_idle_ms) == (5120, 1024, DAY_MS)


def test_message_limit_of_a_standard_namespace_becomes_the_default() -> None:
    """An export has it for every entity, although nobody chose it; the broker is of the Premium tier."""
    (queue,) = parse_config(queue_config({"MaxMessageSizeInKilobytes": 256}), "f")[0].queues
    assert queue.max_message_size_kb == 1024
    with pytest.raises(ConfigError, match=r"MaxMessageSizeInKilobytes .* is 257; allowed are 1024 to 102400 KB"):
        parse_config(queue_config({"MaxMessageSizeInKilobytes": 257}), "f")


def test_unlimited_or_null_time_to_live_counts_as_not_set() -> None:
    """Exports of real queues spell it out."""
    text = queue_config({"DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S", "LockDuration": None})
    (queue,) = parse_config(text, "f")[0].queues
    assert (queue.default_ttl_ms, queue.lock_duration_ms) == (None, 60_000)


def test_a_namespace_may_be_empty() -> None:
    """Queues can come later, over the administration API."""
    assert parse_config(namespace_config(), "f") == [NamespaceConfig("contoso", [], [])]


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"ForwardDeadLetteredMessagesTo": "a b"}, ["ForwardDeadLetteredMessagesTo", "are allowed"]),
        ({"LockDuraton": "PT1M"}, ["unknown key 'LockDuraton'", "did you mean 'LockDuration'?", "Allowed are"]),
        ({"LockDuration": 60}, ["LockDuration must be a text", "60"]),
        ({"LockDuration": "60 s"}, ["LockDuration", "'60 s' is not an ISO-8601 duration"]),
        ({"LockDuration": "PT6M"}, ["LockDuration", "360000", "1000 to 300000 ms"]),
        ({"LockDuration": "P10675199D"}, ["LockDuration", "needs a limit"]),
        ({"MaxDeliveryCount": "3"}, ["MaxDeliveryCount must be a whole number", '"3"']),
        ({"MaxDeliveryCount": True}, ["MaxDeliveryCount must be a whole number", "true"]),
        ({"MaxDeliveryCount": 1.5}, ["MaxDeliveryCount must be a whole number", "1.5"]),
        ({"MaxDeliveryCount": 0}, ["MaxDeliveryCount", "0"]),
        ({"RequiresDuplicateDetection": "yes"}, ["RequiresDuplicateDetection must be true or false"]),
    ],
)
def test_a_wrong_property_is_named_with_file_namespace_and_queue(properties: dict[str, Any], words: list[str]) -> None:
    """A user has to find the property among many."""
    text = refusal(queue_config(properties))
    for word in ["my.json", "namespace 'contoso'", "queue 'orders'", *words]:
        assert word in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["not JSON", "line 1"]),
        ('{\n // fine\n "UserConfig": nothing}', ["not JSON", "line 3 column 16"]),
        ("[" * 100_000, ["not JSON"]),
        (f'{{"UserConfig": {"1" * 5000}}}', ["not JSON"]),
        ("[]", ["expected is an object", "a list"]),
        ("{}", ["'UserConfig' is missing"]),
        ('{"UserConfig": []}', ["UserConfig must be an object"]),
        ('{"UserConfig": {}}', ["'Namespaces' is missing"]),
        ('{"UserConfig": {"Namespaces": [], "Namespaces": []}}', ["'Namespaces' occurs twice"]),
        ('{"UserConfig": {"Namespaces": [], "Colour": 1}}', ["unknown key 'Colour'"]),
        ('{"UserConfig": {"Namespaces": [{}]}}', ["'Name' is missing"]),
        ('{"UserConfig": {"Namespaces": [{"Name": "a b"}]}}', ["namespace 'a b'", "letters, digits"]),
        ('{"UserConfig": {"Namespaces": [{"Name": "a"}, {"Name": "A"}]}}', ["namespace 'A' occurs twice"]),
        (namespace_config(Queues=[{"Name": "q"}, {"Name": "/Q"}]), ["queue 'Q' occurs twice", "namespace 'contoso'"]),
        (namespace_config(Queues=["q"]), ["namespace 'contoso'", "expected is an object", '"q"']),
        (namespace_config(Queues=[{"Name": "a b"}]), ["queue 'a b'", "are allowed"]),
        (namespace_config(Keys=[{"Name": "k", "Key": ""}]), ["key 'k'", "empty"]),
        (namespace_config(Keys=[{"Name": "k"}]), ["key 'k'", "'Key' is missing"]),
        (namespace_config(Keys=[{"Name": "k", "Key": "v", "Rights": ["Own"]}]), ["Rights", "Send, Listen, Manage"]),
        (namespace_config(Keys=[{"Name": "k", "Key": "v"}] * 2), ["key 'k' occurs twice"]),
        (namespace_config(OperationsPerSecond=0), ["OperationsPerSecond must be a number above 0, found 0"]),
        (namespace_config(OperationsPerSecond="9"), ["OperationsPerSecond must be a number above 0"]),
        (namespace_config(OperationsPerSecond=True), ["OperationsPerSecond must be a number above 0"]),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, words: list[str]) -> None:
    """The reader is strict: a misspelt name must not be ignored in silence."""
    found = refusal(text)
    for word in ["my.json", *words]:
        assert word in found


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The most frequent mistake of all."""
    with pytest.raises(ConfigError, match=r"absent\.json: cannot be read"):
        load_config(tmp_path / "absent.json")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.json: cannot be read"):
        load_config(binary)


def topic_config(**topic: Any) -> str:
    return namespace_config(Topics=[{"Name": "events", **topic}])


def rule_config(**properties: Any) -> str:
    rule = {"Name": "red", "Properties": properties}
    return topic_config(Subscriptions=[{"Name": "audit", "Rules": [rule]}])


SHIPPED_TOPIC = {
    "Name": "topic.1",
    "Properties": {
        "DefaultMessageTimeToLive": "PT1H",
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
        "RequiresDuplicateDetection": False,
    },
    "Subscriptions": [
        {
            "Name": "subscription.1",
            "Properties": {
                "DeadLetteringOnMessageExpiration": False,
                "DefaultMessageTimeToLive": "PT1H",
                "LockDuration": "PT1M",
                "MaxDeliveryCount": 3,
                "ForwardDeadLetteredMessagesTo": "",
                "ForwardTo": "",
                "RequiresSession": False,
            },
            "Rules": [
                {
                    "Name": "app-prop-filter-1",
                    "Properties": {
                        "FilterType": "Correlation",
                        "CorrelationFilter": {
                            "ContentType": "application/text",
                            "CorrelationId": "id1",
                            "Label": "subject1",
                            "MessageId": "msgid1",
                            "ReplyTo": "someQueue",
                            "ReplyToSessionId": "sessionId",
                            "SessionId": "session1",
                            "To": "xyz",
                            "Properties": {"prop1": "value1", "prop2": 7, "prop3": True, "prop4": 1.5},
                        },
                    },
                },
                {
                    "Name": "sql-rule",
                    "Properties": {
                        "FilterType": "Sql",
                        "SqlFilter": {"SqlExpression": "sys.MessageId = '123456' AND userProp1 = 'value1'"},
                        "Action": {"SqlExpression": "SET sys.To = 'Entity'"},
                    },
                },
            ],
        },
        {"Name": "subscription.2"},
    ],
}


def test_topics_of_the_emulators_sample_are_read() -> None:
    """The emulator's sample has every kind of filter and every property that the emulator knows."""
    [found] = parse_config(namespace_config(Topics=[SHIPPED_TOPIC]), "f")
    assert found.topics == [TopicDescription("topic.1", default_ttl_ms=3_600_000, duplicate_window_ms=20_000)]
    first, second = found.subscriptions
    assert first.description == SubscriptionDescription(
        "topic.1", "subscription.1", default_ttl_ms=3_600_000, max_delivery_count=3
    )
    assert first.rules is not None
    correlation, sql = first.rules
    assert correlation.filter == CorrelationFilter(
        content_type="application/text",
        correlation_id="id1",
        label="subject1",
        message_id="msgid1",
        reply_to="someQueue",
        reply_to_session_id="sessionId",
        session_id="session1",
        to="xyz",
        properties={"prop1": "value1", "prop2": 7, "prop3": True, "prop4": 1.5},
    )
    assert sql.filter == SqlFilter("sys.MessageId = '123456' AND userProp1 = 'value1'")
    assert sql.action == SqlAction("SET sys.To = 'Entity'")
    assert second.rules is None, "without rules the subscription gets $Default"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (topic_config(Properties={"LockDuration": "PT1M"}), ["topic 'events'", "unknown key 'LockDuration'"]),
        (topic_config(Subscriptions=[{"Name": "a/b"}]), ["subscription 'a/b'", "are allowed"]),
        (topic_config(Subscriptions=[{"Name": "x" * 51}]), ["51 characters", "1 to 50"]),
        (topic_config(Subscriptions=[{"Name": "a"}, {"Name": "A"}]), ["subscription 'A' occurs twice"]),
        (topic_config(Subscriptions=[{"Name": "a", "Rule": []}]), ["unknown key 'Rule'", "did you mean 'Rules'?"]),
        (rule_config(FilterType="Regex"), ["rule 'red'", "FilterType is 'Regex'", "Correlation, Sql"]),
        (rule_config(FilterType="Sql"), ["rule 'red'", "'SqlFilter' is missing"]),
        (rule_config(FilterType="Sql", SqlFilter={"SqlExpression": ""}), ["rule 'red'", "expression is empty"]),
        (rule_config(FilterType="Sql", SqlFilter={"SqlExpression": "x" * 1025}), ["1025 characters", "1024"]),
        (rule_config(FilterType="Correlation", CorrelationFilter={}), ["needs at least one property"]),
        (rule_config(FilterType="Correlation", CorrelationFilter={"Colour": "red"}), ["unknown key 'Colour'"]),
        (
            rule_config(FilterType="Correlation", CorrelationFilter={"Properties": {"a": None}}),
            ["Properties 'a' must be a text, a number, true or false", "null"],
        ),
        (
            rule_config(
                FilterType="Sql", SqlFilter={"SqlExpression": "a=@a", "Parameters": {"@a": {"Type": "no", "Value": ""}}}
            ),
            ["'@a'", "the type 'no' is not known"],
        ),
        (
            namespace_config(Queues=[{"Name": "Events"}], Topics=[{"Name": "events"}]),
            ["queue or topic 'events' occurs twice"],
        ),
    ],
)
def test_a_wrong_topic_is_refused_with_its_place(text: str, words: list[str]) -> None:
    """Down to the rule and the property."""
    found = refusal(text)
    for word in ["namespace 'contoso'", *words]:
        assert word in found
