"""Shared access signatures: signing, parsing and verifying them.

    SharedAccessSignature sr=<resource>&sig=<signature>&se=<unix seconds>&skn=<key name>

The signature is the base64 HMAC-SHA256 of `<sr>\\n<se>`. Three details are surprising:

* `sr` is signed as it stands in the token, percent-encoded. Clients encode with upper- or lower-case hex digits,
  so decoding and encoding again would break honest signatures.
* The HMAC key is the UTF-8 text of the shared access key, although that text looks like base64.
* `skn` may be percent-encoded more than once; it is decoded until it no longer changes (up to a few rounds).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from pairbus.errors import ConfigError, PairbusError

SEND, LISTEN, MANAGE = "Send", "Listen", "Manage"
RIGHTS = (SEND, LISTEN, MANAGE)
NEVER_S = 1 << 40
"Expiry of a grant for the key itself, which, unlike a token, does not expire."
UNQUOTE_ROUNDS_MAX = 8  # the SDKs encode twice; "%252525…" without an end would take a round for every two characters
TOKEN_LENGTH_MAX = 8192  # a JS token repeats the whole URL: 260 path characters, tripled by encoding, fit many times

_PREFIX = re.compile(r"(?:Bearer +)?SharedAccessSignature +", re.IGNORECASE)
_EXPIRY = re.compile(r"0|[1-9][0-9]{0,14}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class TokenNotValid(PairbusError):
    """A token does not allow what the client asked for. The text says why and holds no secret."""


class MalformedToken(TokenNotValid, ValueError):
    """The text is not a shared access signature."""


@dataclass(frozen=True, slots=True)
class SasToken:
    """The parts of a token; none of them has been verified."""

    resource_raw: str
    "`sr` as it is in the token: this text was signed."
    resource: str
    "`sr` decoded: a URL."
    signature: str
    expires_s: int
    "Seconds since 1970."
    key_name: str


@dataclass(frozen=True, slots=True)
class SharedAccessKey:
    """A named policy. Both of its keys are valid, so that keys can be rotated without an outage."""

    name: str
    key: str = field(repr=False)
    secondary_key: str | None = field(default=None, repr=False)
    rights: frozenset[str] = frozenset(RIGHTS)

    def __post_init__(self) -> None:
        unknown = self.rights - set(RIGHTS)
        if unknown or not self.rights:
            raise ConfigError(f"key {self.name!r} has rights {sorted(self.rights)}; allowed are {', '.join(RIGHTS)}")
        if not self.name or not self.key or self.secondary_key == "":
            raise ConfigError(f"key {self.name!r}: neither the name nor the key may be empty")
        texts = f"{self.name}{self.key}{self.secondary_key}"
        if ";" in texts or not texts.isprintable():
            raise ConfigError(f"key {self.name!r}: a ';' or an unprintable character would break connection strings")


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights that a verified token or key gives, where, and until when."""

    rights: frozenset[str]
    "Rights of the key; Manage includes Send and Listen."
    expires_s: int
    scope_path: str
    "Lower-case path without outer slashes; empty is the whole namespace."
    entity_path: str = ""
    "Path of the queue or topic to which the key belongs; empty for a key of the namespace."

    def covers(self, path: str) -> bool:
        """Return True when the path is the scope or lies below it, segment by segment."""
        plain = _plain_path(path)
        if self.entity_path and not _belongs_to(plain, self.entity_path):
            return False
        return not self.scope_path or f"{plain}/".startswith(f"{self.scope_path}/")


def sign(resource: str, key_name: str, key: str, expires_s: int) -> str:
    """Sign a token for a resource URL such as `sb://host/queue`."""
    resource_raw = quote(resource, safe="")
    signature = quote(_signature(resource_raw, expires_s, key), safe="")
    return f"SharedAccessSignature sr={resource_raw}&sig={signature}&se={expires_s}&skn={quote(key_name, safe='')}"


def parse(token: str) -> SasToken:
    """Parse a token, with or without `Bearer ` before it; MalformedToken when the text is not a token."""
    if len(token) > TOKEN_LENGTH_MAX:
        raise MalformedToken(f"the token has {len(token)} characters; {TOKEN_LENGTH_MAX} are allowed")
    if not token.isascii():  # also the lone surrogates that stand for undecodable header bytes
        raise MalformedToken("the token has characters that should be percent-encoded")
    prefix = _PREFIX.match(token.strip())
    if prefix is None:
        raise MalformedToken("the token does not start with 'SharedAccessSignature '; only SAS tokens are accepted")
    parts: dict[str, str] = {}
    for parameter in token.strip()[prefix.end() :].split("&"):
        name, equals, value = parameter.partition("=")
        if not equals or name in parts:
            raise MalformedToken(f"token parameter {name!r} has no value or occurs twice")
        parts[name] = value
    for name in ("sr", "sig", "se", "skn"):
        if not parts.get(name):
            raise MalformedToken(f"the token has no {name!r} parameter")
    if not _EXPIRY.fullmatch(parts["se"]):
        raise MalformedToken("the token's expiry 'se' is not a whole number of seconds since 1970")
    return SasToken(
        resource_raw=parts["sr"],
        resource=unquote(parts["sr"]),
        signature=unquote(parts["sig"]),
        expires_s=int(parts["se"]),
        key_name=_unquote_fully(parts["skn"]),
    )


def verify(token: SasToken, keys: Iterable[SharedAccessKey], now_s: float, skew_s: float = 0) -> SharedAccessKey:
    """Return the key that signed the token; TokenNotValid: unknown key name, wrong signature, expired.

    `skew_s`: seconds after its expiry during which a token is still accepted.
    """
    named = [key for key in keys if key.name == token.key_name]
    if not named:
        raise TokenNotValid(f"no key is named {token.key_name!r}")
    for key in named:
        for text in (key.key, key.secondary_key):
            if text is not None and _is_signed_with(token, text):
                # The expiry is checked after the signature, so that a forged token does not tell the broker's time.
                if token.expires_s + skew_s <= now_s:
                    raise TokenNotValid(f"the token expired {now_s - token.expires_s:.0f} seconds ago")
                return key
    raise TokenNotValid(f"the signature does not match key {token.key_name!r}")


def resource_path(resource: str) -> str:
    """Return the path of a resource or audience URL, in the form in which scopes are compared; the host is ignored.

    One broker is reached as localhost, 127.0.0.1 or by a container's name; a token signed for one of them is valid
    for all, because the key proves the right. A text without a scheme starts with the host.
    """
    without_scheme = _SCHEME.sub("", resource, count=1)
    path = without_scheme.partition("/")[2]
    return _plain_path(re.split(r"[?#]", path, maxsplit=1)[0])


class KeyRing:
    """The keys of one namespace, and the keys of single queues and topics in it."""

    def __init__(self, keys: Iterable[SharedAccessKey]) -> None:
        self._keys: dict[str, SharedAccessKey] = {}
        for key in keys:
            if key.name in self._keys:
                raise ConfigError(f"two keys are named {key.name!r}")
            self._keys[key.name] = key
        self._entity_keys: dict[str, tuple[SharedAccessKey, ...]] = {}
        "Keys by the lower-case path of their queue or topic."

    def set_entity_keys(self, path: str, keys: Iterable[SharedAccessKey]) -> None:
        """Replace the keys of one queue or topic. Tokens that were checked before stay valid until they expire."""
        kept = tuple(keys)
        if kept:
            self._entity_keys[_plain_path(path)] = kept
        else:
            self._entity_keys.pop(_plain_path(path), None)

    def __repr__(self) -> str:
        return f"<KeyRing {' '.join(self._keys)}>"

    def check(
        self, token_text: str, audience_path: str, now_s: float, *, skew_s: float = 0, resource: str | None = None
    ) -> Grant:
        """Return the grant of a token at a path (`resource_path` of the audience URL); else TokenNotValid.

        `resource`: a path below the audience that is asked for, such as its messages. A token may then be for it alone.
        """
        token = parse(token_text)
        scope = resource_path(token.resource)
        if resource is not None:
            audience = _plain_path(audience_path)
            if f"{scope}/".startswith(f"{audience}/") and f"{_plain_path(resource)}/".startswith(f"{scope}/"):
                scope = audience
        entity = self._entity_of(scope, token.key_name)
        # The namespace and the entity may each have a key of this name: the signature tells which one was used.
        keys = [*self._keys.values(), *self._entity_keys.get(entity, ())]
        key = verify(token, keys, now_s, skew_s)
        is_of_entity = all(key is not own for own in self._keys.values())
        grant = Grant(_effective(key), token.expires_s, scope, entity if is_of_entity else "")
        if not grant.covers(audience_path):
            raise TokenNotValid(f"the token is for {grant.scope_path!r}, not for {_plain_path(audience_path)!r}")
        return grant

    def _entity_of(self, scope: str, key_name: str) -> str:
        """Return the queue or topic whose key of this name may sign for the scope; empty when there is none."""
        segments = scope.split("/")
        for count in range(len(segments), 0, -1):
            path = "/".join(segments[:count])
            if _belongs_to(scope, path) and any(key.name == key_name for key in self._entity_keys.get(path, ())):
                return path
        return ""

    def login(self, name: str, key_text: str) -> Grant | None:
        """Return the grant for the name of a key and the key itself, for SASL PLAIN; None when no key has both."""
        key = self._keys.get(name)
        if key is not None and _has_text(key, key_text):
            return Grant(_effective(key), NEVER_S, "")
        for path, keys in self._entity_keys.items():
            for key in keys:
                if key.name == name and _has_text(key, key_text):
                    return Grant(_effective(key), NEVER_S, path, path)
        return None


def _has_text(key: SharedAccessKey, key_text: str) -> bool:
    texts = [text.encode() for text in (key.key, key.secondary_key) if text is not None]
    return any(hmac.compare_digest(text, key_text.encode()) for text in texts)


def _belongs_to(path: str, entity_path: str) -> bool:
    """Return True when the path is the queue or topic, its subscription or its `$` node; `a/b` is not of queue `a`."""
    if path == entity_path:
        return True
    below = path.removeprefix(f"{entity_path}/") if path.startswith(f"{entity_path}/") else ""
    return below.startswith(("$", "subscriptions/"))


def _effective(key: SharedAccessKey) -> frozenset[str]:
    """Return the rights of a key; Manage includes Send and Listen."""
    return frozenset(RIGHTS) if MANAGE in key.rights else key.rights


def _signature(resource_raw: str, expires_s: int, key: str) -> str:
    digest = hmac.new(key.encode(), f"{resource_raw}\n{expires_s}".encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def _is_signed_with(token: SasToken, key: str) -> bool:
    expected = _signature(token.resource_raw, token.expires_s, key)
    return hmac.compare_digest(expected.encode(), token.signature.encode())


def _plain_path(path: str) -> str:
    return "/".join(segment for segment in _unquote_fully(path).lower().split("/") if segment)


def _unquote_fully(text: str) -> str:
    for _ in range(UNQUOTE_ROUNDS_MAX):
        if (decoded := unquote(text)) == text:
            break
        text = decoded
    return text
