"""`<entity>/$management`: requests about messages, sessions and rules, answered over a pair of links."""

from __future__ import annotations

from pairbus.broker.management import (
    message_operations as messages,
)
from pairbus.broker.management import (
    rule_operations as rules,
)
from pairbus.broker.management import (
    session_operations as sessions,
)
from pairbus.broker.management.node import ManagementNode, Operation, RequestTarget

__all__ = ["OPERATIONS", "ManagementNode", "Operation", "RequestTarget"]

OPERATIONS: dict[str, Operation] = {**messages.OPERATIONS, **rules.OPERATIONS, **sessions.OPERATIONS}
