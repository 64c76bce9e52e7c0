"""Authorization rules of one queue or topic: named keys with rights for this entity alone."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from pairbus.auth.sas import LISTEN, MANAGE, RIGHTS, SEND, SharedAccessKey
from pairbus.errors import ConfigError, InvalidDescription

RULES_MAX = 12  # shared access policies of one entity
KEY_NAME_LENGTH_MAX = 256
CLAIM_TYPE, CLAIM_VALUE = "SharedAccessKey", "None"


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
    """A key name, its two keys and the rights that they give."""

    key_name: str
    rights: tuple[str, ...]
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    created_ms: int = 0
    modified_ms: int = 0

    def as_key(self) -> SharedAccessKey:
        return SharedAccessKey(self.key_name, self.primary_key, self.secondary_key, frozenset(self.rights))


def new_key() -> str:
    """Make a key as the service does: 32 random bytes in base64."""
    return base64.b64encode(secrets.token_bytes(32)).decode()


def check_rules(path: str, rules: Iterable[AuthorizationRule]) -> tuple[AuthorizationRule, ...]:
    """Return the rules of the entity, or raise InvalidDescription."""
    checked = tuple(rules)
    if len(checked) > RULES_MAX:
        raise InvalidDescription(f"AuthorizationRules of {path!r}: {len(checked)} rules; {RULES_MAX} are allowed")
    names: set[str] = set()
    for rule in checked:
        place = f"AuthorizationRules of {path!r}: rule {rule.key_name!r}"
        if rule.key_name in names:
            raise InvalidDescription(f"{place} occurs twice")
        names.add(rule.key_name)
        if len(rule.key_name) > KEY_NAME_LENGTH_MAX:
            raise InvalidDescription(f"{place}: the name has more than {KEY_NAME_LENGTH_MAX} characters")
        if unknown := [right for right in rule.rights if right not in RIGHTS]:
            raise InvalidDescription(f"{place}: unknown right {unknown[0]!r}; known are {', '.join(RIGHTS)}")
        if MANAGE in rule.rights and not {SEND, LISTEN} <= set(rule.rights):
            raise InvalidDescription(f"{place}: {MANAGE} must come with {SEND} and {LISTEN}")
        try:
            rule.as_key()
        except ConfigError as error:
            raise InvalidDescription(f"{place}: {error}") from None
    return checked


def rules_to_json(rules: tuple[AuthorizationRule, ...]) -> list[dict[str, Any]]:
    return [asdict(rule) for rule in rules]


def rules_from_json(values: Any) -> tuple[AuthorizationRule, ...]:
    return tuple(AuthorizationRule(**{**value, "rights": tuple(value["rights"])}) for value in values or ())
