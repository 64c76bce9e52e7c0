"""Outages on demand: the table of faults, a fault as a value, and the decision whether one meets an event.

This package uses no socket, disk or clock. The broker acts on its decisions (`pairbus.broker.outages`).
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
