"""Options of a syphon."""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions, TtlPolicy
from pairbus.syphon.decide.pace import BATCH_MAX

POLL_S = 15 * 60.0


@dataclass(frozen=True, slots=True)
class SyphonSettings:
    """Options of a syphon; durations in seconds."""

    retry_interval_s: float = 1.0
    missing_destination_grace_s: float = 15 * 60.0
    duplicate_detection_window_s: float = 10 * 60.0
    ttl_policy: TtlPolicy = "restore"
    max_messages_per_second: float | None = None
    batch_max: int = BATCH_MAX
    poll_s: float = POLL_S
    send_timeout_s: float = 10.0

    @classmethod
    def of(cls, options: SendAvailabilityPairedNamespaceOptions) -> SyphonSettings:
        return cls(
            retry_interval_s=options.syphon_retry_interval,
            missing_destination_grace_s=options.missing_destination_grace,
            duplicate_detection_window_s=options.duplicate_detection_window,
            ttl_policy=options.ttl_policy,
            max_messages_per_second=options.max_messages_per_second,
        )
