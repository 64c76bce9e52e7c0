"""Authorization rules of an entity in XML."""

from __future__ import annotations

from collections.abc import Iterable

from pairbus.broker.admin.atom import Markup, format_time, inside
from pairbus.broker.admin.xml import Element, MalformedEntry
from pairbus.broker.description.authorization import CLAIM_TYPE, CLAIM_VALUE, AuthorizationRule, new_key

RULE_TYPE = "SharedAccessAuthorizationRule"


def read_authorization(
    element: Element, current: Iterable[AuthorizationRule], now_ms: int
) -> tuple[AuthorizationRule, ...]:
    """Read `AuthorizationRules`. Keys that are left out stay as they are, or are made for a new rule."""
    known = {rule.key_name: rule for rule in current}
    rules: list[AuthorizationRule] = []
    for name, child in element.of_service():
        if name != "AuthorizationRule":
            raise MalformedEntry(f"AuthorizationRules holds {name}; expected is AuthorizationRule")
        members = child.members()
        texts = {local: member.text.strip() for local, member in members.items() if not member.is_nil}
        key_name = texts.get("KeyName", "")
        rights = members.get("Rights")
        before = known.get(key_name)
        rule = AuthorizationRule(
            key_name=key_name,
            rights=tuple(right.text.strip() for _, right in rights.of_service()) if rights is not None else (),
            primary_key=texts.get("PrimaryKey") or (before.primary_key if before else new_key()),
            secondary_key=texts.get("SecondaryKey") or (before.secondary_key if before else new_key()),
            created_ms=before.created_ms if before else now_ms,
            modified_ms=now_ms,
        )
        is_same = before is not None and _substance(before) == _substance(rule)
        rules.append(before if is_same and before is not None else rule)
    return tuple(rules)


def _substance(rule: AuthorizationRule) -> tuple[object, ...]:
    return rule.key_name, set(rule.rights), rule.primary_key, rule.secondary_key


def authorization_element(rules: Iterable[AuthorizationRule]) -> Markup:
    """Write `AuthorizationRules`; only clients with the right Manage can read them."""
    written = "".join(
        f'<AuthorizationRule i:type="{RULE_TYPE}">{inside(_elements(rule))}</AuthorizationRule>' for rule in rules
    )
    return Markup(f"<AuthorizationRules>{written}</AuthorizationRules>")


def _elements(rule: AuthorizationRule) -> tuple[tuple[str, object], ...]:
    rights = "".join(f"<AccessRights>{right}</AccessRights>" for right in rule.rights)
    return (
        ("ClaimType", CLAIM_TYPE),
        ("ClaimValue", CLAIM_VALUE),
        ("Rights", Markup(f"<Rights>{rights}</Rights>")),
        ("CreatedTime", format_time(rule.created_ms)),
        ("ModifiedTime", format_time(rule.modified_ms)),
        ("KeyName", rule.key_name),
        ("PrimaryKey", rule.primary_key),
        ("SecondaryKey", rule.secondary_key),
    )
