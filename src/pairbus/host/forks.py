"""Forks of this process, on systems that have them."""

from __future__ import annotations

import os
from collections.abc import Callable

_register = getattr(os, "register_at_fork", None)


def call_in_forked_child(function: Callable[[], object]) -> None:
    """Call the function in every child that is forked from now on; without effect on a system that cannot fork."""
    if _register is not None:
        _register(after_in_child=function)
