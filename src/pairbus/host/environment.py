"""Variables of the environment that turn a feature on or off."""

from __future__ import annotations

import os

_WORDS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("", "0", "false", "no", "off"), False)
WORDS = ", ".join(filter(None, _WORDS))
"Words that such a variable may have."


def read_switch(variable: str) -> tuple[str, bool | None]:
    """Return the word of a variable and its meaning: None for a word that is not known."""
    word = os.environ.get(variable, "")
    return word, _WORDS.get(word.strip().lower())
