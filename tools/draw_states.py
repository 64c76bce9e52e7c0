"""Write the state diagram of docs/failover.md, between two markers, from the table of the state machine.

python tools/draw_states.py            # writes it
python tools/draw_states.py --check    # 1 when the page shows another table
"""

from __future__ import annotations

import sys
from pathlib import Path

from pairbus.pairing.failover import HEALTHY, TRANSITIONS, State

PAGE = Path(__file__).parent.parent / "docs" / "failover.md"
BEGIN, END = "<!-- states: written by tools/draw_states.py -->", "<!-- end of states -->"


def diagram() -> str:
    """Return a Mermaid block: one arrow for each two states, labelled with every signal between them."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for (before, signal), after in TRANSITIONS.items():
        arrows.setdefault((before, after), []).append(signal.value)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {HEALTHY.value}"]
    lines += [
        f"    {before.value} --> {after.value}: {' / '.join(labels)}" for (before, after), labels in arrows.items()
    ]
    return "\n".join([*lines, "```"])


def drawn(page: str) -> str:
    """Return the page with the current diagram between its markers; ValueError when it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{diagram()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    wanted = drawn(page)
    if "--check" in arguments:
        return int(page != wanted)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
