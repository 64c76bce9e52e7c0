"""Forks of this process. Not every system has them."""

from __future__ import annotations

import os
from collections.abc import Callable

_register = getattr(os, "register_at_fork", None)


def call_in_forked_child(function: Callable[[], object]) -> None:
    """Have the function called in every child that is forked from now on; in none where a process cannot fork."""
    if _register is not None:
        _register(after_in_child=function)
