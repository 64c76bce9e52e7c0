"""Shared access signatures: which tokens give access, which do not, and why."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from hypothesis import given
from hypothesis import strategies as st

from pairbus.auth.sas import (
    LISTEN,
    MANAGE,
    RIGHTS,
    SEND,
    Grant,
    KeyRing,
    MalformedToken,
    SharedAccessKey,
    TokenNotValid,
    parse,
    resource_path,
    sign,
)
from pairbus.errors import ConfigError

NOW_S = 1_800_000_000
KEY = SharedAccessKey("RootManageSharedAccessKey", "SAS_KEY_VALUE", "second", frozenset({MANAGE}))
RING = KeyRing([KEY, SharedAccessKey("app", "k", rights=frozenset({SEND}))])


def token(resource: str = "sb://localhost:5672/", key: str = "SAS_KEY_VALUE", expires_s: int = NOW_S + 60) -> str:
    return sign(resource, KEY.name, key, expires_s)


def test_a_token_of_the_genuine_sdk_is_accepted() -> None:
    """The SDK encodes the key's name twice and signs the percent-encoded resource."""
    policy = "strange/näme"
    genuine = ServiceBusSharedKeyCredential(policy, "abc=").get_token("sb://localhost:5672/Orders").token
    text = genuine if isinstance(genuine, str) else genuine.decode()
    ring = KeyRing([SharedAccessKey(policy, "abc=")])
    assert ring.check(text, "orders", parse(text).expires_s - 1).scope_path == "orders"


def test_a_resource_encoded_with_lower_case_digits_keeps_its_signature() -> None:
    """The JavaScript administration client does that; encoding anew would change the signed text."""
    resource_raw = "https%3a%2f%2flocalhost%3a5672%2forders%3fapi-version%3d2021-05"
    digest = hmac.new(b"SAS_KEY_VALUE", f"{resource_raw}\n{NOW_S + 60}".encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode().replace("=", "%3d").replace("+", "%2B").replace("/", "%2f")
    text = f"SharedAccessSignature sig={signature}&se={NOW_S + 60}&skn={KEY.name}&sr={resource_raw}"
    assert RING.check(text, "Orders", NOW_S).scope_path == "orders"


def test_percent_signs_are_decoded_a_few_times_only() -> None:
    """Each round of decoding reads the whole text: 64 KB of percent signs would hold the broker for seconds."""
    assert resource_path("sb://h/%252525") == "%"
    assert resource_path("sb://h/%" + "25" * 100).startswith("%25")


@pytest.mark.parametrize("prefix", ["", "Bearer ", "bearer  "])
def test_the_word_bearer_may_stand_before_a_token(prefix: str) -> None:
    """The Python SDK adds it when the connection string holds a signature."""
    assert RING.check(prefix + token(), "q", NOW_S).expires_s == NOW_S + 60


def test_both_keys_of_a_policy_sign_for_it() -> None:
    """Rotation: clients move from one to the other while both are good."""
    assert RING.check(token(key="second"), "q", NOW_S)
    with pytest.raises(TokenNotValid, match="does not match"):
        RING.check(token(key="third"), "q", NOW_S)


def test_manage_brings_the_other_rights_and_send_brings_nothing() -> None:
    """The service's own rule."""
    assert RING.check(token(), "q", NOW_S).rights == {SEND, LISTEN, MANAGE}
    assert RING.check(sign("sb://h/", "app", "k", NOW_S + 1), "q", NOW_S).rights == {SEND}


def test_an_expired_token_is_refused_unless_skew_is_granted() -> None:
    """HTTP grants it, because the Python administration client renews late; AMQP does not."""
    text = token(expires_s=NOW_S)
    assert RING.check(text, "q", NOW_S - 1)
    with pytest.raises(TokenNotValid, match="expired 0 seconds ago"):
        RING.check(text, "q", NOW_S)
    assert RING.check(text, "q", NOW_S + 299, skew_s=300)
    with pytest.raises(TokenNotValid, match="expired 300 seconds ago"):
        RING.check(text, "q", NOW_S + 300, skew_s=300)


@pytest.mark.parametrize(
    ("resource", "path", "covered"),
    [
        ("sb://localhost:5672", "orders", True),
        ("sb://localhost:5672/", "orders/$management", True),
        ("sb://other.host/orders", "orders", True),
        ("sb://h/Orders/", "orders/$DeadLetterQueue", True),
        ("sb://h/a/b", "A/B/c", True),
        ("https://h:1/a%2Fb?api-version=2021-05", "a/b", True),
        ("sb://h/orders", "orders2", False),
        ("sb://h/orders", "", False),
        ("sb://h/a/b", "a", False),
        ("sb://h/a/b", "a/bc", False),
        ("localhost:5672/orders", "orders", True),
        ("localhost:5672", "orders", True),
        ("orders", "orders", True),
    ],
)
def test_a_scope_covers_itself_and_what_lies_below_it(resource: str, path: str, covered: bool) -> None:
    """Segment by segment and in any case; the host does not matter. A lone word is a host: the whole namespace."""
    if covered:
        assert RING.check(token(resource), path, NOW_S)
    else:
        with pytest.raises(TokenNotValid, match="the token is for"):
            RING.check(token(resource), path, NOW_S)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Bearer eyJ0.eyJ1.c2ln",
        "SharedAccessSignature",
        "SharedAccessSignature sr=a&sig=b&se=1",
        "SharedAccessSignature sr=a&sig=b&se=1&skn=",
        "SharedAccessSignature sr=a&sr=b&sig=b&se=1&skn=k",
        "SharedAccessSignature sr=a&sig=b&se=1.5&skn=k",
        "SharedAccessSignature sr=a&sig=b&se=-1&skn=k",
        "SharedAccessSignature sr=a&sig=b&se=01&skn=k",
        "SharedAccessSignature sr=a&sig=b&se=٣&skn=k",
        "SharedAccessSignature sr=a&sig&se=1&skn=k",
        "SharedAccessSignature sr=\udcff&sig=b&se=1&skn=app",
        f"SharedAccessSignature sr={'a' * 9000}&sig=b&se=1&skn=k",
    ],
)
def test_a_text_that_is_no_token_is_malformed(text: str) -> None:
    """The error is a refusal and a ValueError: code that only parses tokens need not know of refusals."""
    with pytest.raises(MalformedToken):
        parse(text)
    with pytest.raises(TokenNotValid):
        RING.check(text, "q", NOW_S)


@given(st.text())
def test_any_text_ends_in_a_refusal_and_no_other_error(text: str) -> None:
    """Tokens come from the wire before their sender is known."""
    for candidate in (
        text,
        f"SharedAccessSignature {text}",
        f"SharedAccessSignature sr={text}&sig={text}&se=1&skn=app",
    ):
        with pytest.raises(TokenNotValid):
            RING.check(candidate, "q", NOW_S)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1), st.text(min_size=1, max_size=9))
def test_what_sign_writes_parse_reads(resource: str, signed_key: str) -> None:
    """A resource may have any characters."""
    signed_key = signed_key.encode("utf-8", "replace").decode()
    parsed = parse(sign(resource, "name & more", signed_key, NOW_S))
    assert (parsed.resource, parsed.key_name, parsed.expires_s) == (resource, "name & more", NOW_S)


def test_a_changed_resource_or_expiry_breaks_the_signature() -> None:
    """Otherwise a token for one queue could be rewritten into one for all, for ever."""
    genuine = token("sb://h/orders")
    for forged in (genuine.replace("orders", "others"), genuine.replace(str(NOW_S + 60), str(NOW_S + 61))):
        with pytest.raises(TokenNotValid, match="does not match"):
            RING.check(forged, "orders", NOW_S)


def test_keys_never_show_in_a_repr() -> None:
    """A repr ends up in logs."""
    assert "SAS_KEY_VALUE" not in repr(KEY) + repr(RING)
    assert "second" not in repr(KEY)


def test_impossible_keys_are_configuration_errors() -> None:
    """Found at start, not at the first client."""
    with pytest.raises(ConfigError, match="allowed are Send, Listen, Manage"):
        SharedAccessKey("k", "v", rights=frozenset({"Own"}))
    with pytest.raises(ConfigError, match="empty"):
        SharedAccessKey("k", "")
    for key in ("first;second", "two\nlines", "\ud800"):
        with pytest.raises(ConfigError, match="connection string"):
            SharedAccessKey("k", key)
    with pytest.raises(ConfigError, match="two keys"):
        KeyRing([KEY, KEY])


def test_a_grant_covers_other_paths_of_its_scope() -> None:
    """A connection checks later links against the token it was given at $cbs."""
    grant = Grant(frozenset({SEND}), NOW_S, "a/b")
    assert grant.covers("A/b/$management")
    assert not grant.covers("a/bc")
    assert resource_path("sb://h:1/A/b/?x=1#y") == "a/b"


# ── keys of entities ──

RING_NOW_S = 1_000


def entity_ring() -> KeyRing:
    ring = KeyRing([SharedAccessKey("root", "root-key")])
    ring.set_entity_keys("Orders", [SharedAccessKey("app", "app-key", "app-key-2", frozenset({SEND}))])
    ring.set_entity_keys("orders/0", [SharedAccessKey("root", "other-key", rights=frozenset({LISTEN}))])
    return ring


def entity_token(resource: str, name: str = "app", key: str = "app-key") -> str:
    return sign(f"sb://localhost:5672/{resource}", name, key, RING_NOW_S + 60)


@pytest.mark.parametrize(
    "path", ["orders", "ORDERS/$management", "orders/$DeadLetterQueue", "orders/Subscriptions/s", "orders/$Transfer/x"]
)
def test_entity_key_opens_its_entity_and_its_nodes(path: str) -> None:
    """Each of the two keys gives access, with a token for the entity or for the node itself."""
    for resource, key in (("Orders", "app-key"), (path, "app-key-2")):
        grant = entity_ring().check(entity_token(resource, key=key), path, RING_NOW_S)
        assert grant.rights == {SEND}
        assert grant.covers(path)
        assert not grant.covers("orders/0")


@pytest.mark.parametrize(
    ("resource", "audience"),
    [
        ("", "orders"),  # signed for the whole namespace
        ("", ""),
        ("order", "order"),
        ("orders2", "orders2"),
        ("orders/0", "orders/0"),  # another queue, below the same name
        ("orders", "orders/0"),
        ("orders/subscriptions", "orders/subscriptions"),
    ],
)
def test_entity_key_opens_nothing_else(resource: str, audience: str) -> None:
    """The key of a queue is no key of its neighbours, also of those with similar names."""
    with pytest.raises(TokenNotValid):
        entity_ring().check(entity_token(resource), audience, RING_NOW_S)


def test_name_may_belong_to_namespace_and_entity() -> None:
    """The signature tells which key was meant."""
    ring = entity_ring()
    own = ring.check(entity_token("orders/0", "root", "other-key"), "orders/0", RING_NOW_S)
    assert (own.rights, own.entity_path) == (frozenset({LISTEN}), "orders/0")
    root = ring.check(entity_token("orders/0", "root", "root-key"), "orders/0", RING_NOW_S)
    assert (root.rights, root.entity_path) == (frozenset(RIGHTS), "")


def test_entity_keys_are_replaced_and_removed() -> None:
    """A rule that is gone opens nothing."""
    ring = entity_ring()
    ring.set_entity_keys("orders", [SharedAccessKey("app", "new", rights=frozenset({LISTEN}))])
    with pytest.raises(TokenNotValid, match="does not match"):
        ring.check(entity_token("orders"), "orders", RING_NOW_S)
    assert ring.check(entity_token("orders", key="new"), "orders", RING_NOW_S).rights == {LISTEN}
    ring.set_entity_keys("ORDERS", [])
    with pytest.raises(TokenNotValid, match="no key is named"):
        ring.check(entity_token("orders", key="new"), "orders", RING_NOW_S)


def test_entity_key_logs_in_for_its_entity() -> None:
    """SASL PLAIN shows the key itself and names no entity."""
    ring = entity_ring()
    grant = ring.login("app", "app-key-2")
    assert grant is not None
    assert (grant.rights, grant.scope_path) == (frozenset({SEND}), "orders")
    assert not grant.covers("orders/0")
    assert not grant.covers("")
    assert ring.login("app", "wrong") is None
