"""Outages on demand: the table of faults, a fault as a value, and the decision whether one meets an event.

The files here use no socket, disk or clock. `play` plays faults of connections for the broker and the proxy; faults of
operations are played by `broker/outages` and `proxy/operations.py`.
"""

from pairbus.faults.active import Active, Faults
from pairbus.faults.fault import DURATIONS, Fault, read_duration
from pairbus.faults.kinds import CONTACT, DIRECTIONS, KINDS, MANAGE, RECEIVE, SEND, FaultKind, Place
from pairbus.faults.load import Load
from pairbus.faults.pace import Pace

__all__ = [
    "CONTACT",
    "DIRECTIONS",
    "DURATIONS",
    "KINDS",
    "MANAGE",
    "RECEIVE",
    "SEND",
    "Active",
    "Fault",
    "FaultKind",
    "Faults",
    "Load",
    "Pace",
    "Place",
    "read_duration",
]
