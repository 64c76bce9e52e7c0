"""The names on which users rely, as this code has them: `python -m tests.public --write` keeps them in public.json.

`tests/test_public.py` compares. A name that is added, renamed or removed is a decision, with a line in CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tools.write_cli_docs import commands, parameters

from pairbus import PairedServiceBusClient
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.spark.option_table import OPTIONS

KEPT = Path(__file__).parent / "public.json"
PACKAGES = ("pairbus", "pairbus.aio", "pairbus.spark", "pairbus.testing")


def public() -> dict[str, Any]:
    """Return names of packages, parameters of the client, options of Spark's format, commands with their options."""
    return {
        "names": {package: sorted(import_module(package).__all__) for package in PACKAGES},
        "client": sorted(inspect.signature(PairedServiceBusClient.from_connection_strings).parameters),
        "options": sorted(inspect.signature(SendAvailabilityPairedNamespaceOptions).parameters),
        "spark": sorted(option.name for option in OPTIONS),
        "commands": {
            name: sorted(typed.split(" ")[0].rstrip(",") for typed, _, _ in parameters(command.callback))
            for name, command in commands()
            if command.callback is not None
        },
    }


if __name__ == "__main__":
    text = json.dumps(public(), indent=1, sort_keys=True) + "\n"
    if "--write" in sys.argv:
        KEPT.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
