"""Findings of `pairbus pair check` and what to do about them. No clock and no network: `checking.py` asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from pairbus.cli.pipeline.telling import many
from pairbus.pairing.rotation import LOCK_DURATION_S, MAX_DELIVERY_COUNT, MAX_SIZE_MB, queue_index, queue_path
from pairbus.settings.durations import UNLIMITED

CLOCK_MAX_S = 60.0  # a larger difference shows in ages and in times to live, and finally as refused tokens
DATE_STEP_S = 1.0  # an HTTP date has whole seconds
SHOWN_MAX = 5  # queues in one finding

FindingState = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the check."""

    check: str
    state: FindingState
    detail: str
    advice: str = ""
    "Advice to the operator; empty when there is nothing to do."

    def __str__(self) -> str:
        return f"{self.state:<7} {self.check}: {self.detail}" + (f". {self.advice}" if self.advice else "")


def in_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as they go into JSON."""
    return {"ok": is_well(findings), "checks": [asdict(finding) for finding in findings]}


def is_well(findings: Sequence[Finding]) -> bool:
    """Tell whether no check failed: exit code 0."""
    return all(finding.state != "failed" for finding in findings)


# ── settings of backlog queues, as the specification has them ──


@dataclass(frozen=True, slots=True)
class WantedSetting:
    """A setting of a backlog queue."""

    value: Any
    option: str | None
    "Option of `pairbus queue update` that sets it; None: only a new queue can have it."
    at_least: bool = False

    def is_met_by(self, value: Any) -> bool:
        if self.at_least:
            return bool(value >= self.value)
        return bool((value or None) == (self.value or None))


SETTINGS: Mapping[str, WantedSetting] = {
    "max_size_in_megabytes": WantedSetting(MAX_SIZE_MB, f"--max-size-mb {MAX_SIZE_MB}", at_least=True),
    "max_delivery_count": WantedSetting(MAX_DELIVERY_COUNT, f"--max-delivery-count {MAX_DELIVERY_COUNT}"),
    "default_message_time_to_live": WantedSetting(UNLIMITED, "--ttl never", at_least=True),
    "auto_delete_on_idle": WantedSetting(UNLIMITED, "--auto-delete-on-idle never", at_least=True),
    "lock_duration": WantedSetting(timedelta(seconds=LOCK_DURATION_S), f"--lock-duration {LOCK_DURATION_S:g}"),
    "dead_lettering_on_message_expiration": WantedSetting(True, "--dead-letter-on-expiration"),
    "enable_batched_operations": WantedSetting(True, None),
    "requires_session": WantedSetting(False, None),
    "requires_duplicate_detection": WantedSetting(False, None),
    "forward_to": WantedSetting(None, "--forward-to ''"),
    "status": WantedSetting("Active", "--status Active"),
}
"Setting in the words of the SDK's QueueProperties → the value that it should have."


def settings_finding(queues: Mapping[str, Mapping[str, Any]]) -> Finding:
    """Compare the settings of the backlog queues, by path, with the specification."""
    check = "secondary settings of backlog queues"
    differing = {
        path: differing_values for path, settings in queues.items() if (differing_values := differences(settings))
    }
    if not differing:
        return Finding(check, "ok", f"{many(len(queues), 'queue')} as specified")
    lines = [
        f"{path} has " + ", ".join(f"{name} {_shown(queues[path].get(name))}" for name in names)
        for path, names in list(differing.items())[:SHOWN_MAX]
    ]
    path, names = next(iter(differing.items()))
    options = [option for name in names if (option := SETTINGS[name].option) is not None]
    if len(options) == len(names):
        advice = f"`pairbus queue update {path} {' '.join(options)}`"
    else:
        advice = f"Drain {path} by `pairbus syphon --once`, delete it, and create it again by `pairbus pair create`"
    if len(differing) > 1:
        advice += ", and so on for each queue"
    return Finding(check, "failed", "; ".join(lines) + _more(len(differing) - len(lines)), advice)


def differences(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that are not as specified; an unknown setting is left out."""
    values = {name: value for name in SETTINGS if (value := settings.get(name)) is not None}
    return [name for name, value in values.items() if not SETTINGS[name].is_met_by(value)]


def _shown(value: object) -> str:
    return f"{value.total_seconds():g} s" if isinstance(value, timedelta) else str(value)


def there_finding(namespace: str, primary_name: str, paths: Sequence[str], rotation: int, others: str) -> Finding:
    """Report whether the backlog queues of the rotation exist. `others` names those of other primaries."""
    check = "secondary backlog queues"
    numbers = {queue_index(primary_name, path) for path in paths}
    missing = [queue_path(primary_name, index) for index in range(rotation) if index not in numbers]
    if not missing:
        return Finding(check, "ok", f"{primary_name}: {rotation} of {rotation} are in {namespace}")
    create = f"`pairbus pair create --primary-name {primary_name} --backlog-queue-count {rotation}` creates them"
    if len(missing) == rotation:
        return Finding(check, "failed", others, create)
    shown = ", ".join(missing[:SHOWN_MAX]) + _more(len(missing) - SHOWN_MAX)
    return Finding(check, "failed", f"{len(missing)} of {rotation} are missing: {shown}", create)


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


# ── clocks ──


def clock_finding(side: str, date: str | None, began_s: float, ended_s: float) -> Finding:
    """Compare an HTTP date with our clock, in seconds since 1970 before and after the request."""
    check = f"{side} clock"
    if date is None:
        return Finding(check, "skipped", "the answer of administration has no date, or there was no answer")
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return Finding(check, "skipped", f"the date of the answer cannot be read: {date!r:.60}")
    ahead, behind = theirs - ended_s, began_s - theirs - DATE_STEP_S
    off_s = max(ahead, behind, 0.0)
    if off_s <= CLOCK_MAX_S:
        return Finding(check, "ok", f"at most {off_s + DATE_STEP_S:.0f} s from ours")
    which = "ahead of" if ahead > behind else "behind"
    return Finding(
        check,
        "failed",
        f"{off_s:.0f} s {which} ours",
        "Set the clock of this machine by NTP: tokens and times to live are wrong by that much",
    )


# ── rights ──


def right_finding(check: str, asked: Sequence[str], errors: Mapping[str, str], advice: str) -> Finding:
    """Report whether all asked entities answered without an error. `errors`: path → error."""
    if not asked:
        return Finding(check, "skipped", "there is nothing to try it on")
    if not errors:
        return Finding(check, "ok", asked[0] if len(asked) == 1 else many(len(asked), "queue"))
    path, error = next(iter(errors.items()))
    return Finding(check, "failed", f"{path}: {error.rstrip('.')}{_more(len(errors) - 1)}", advice)
