"""The words of the service in errors of the administration client."""

from __future__ import annotations

import re
from typing import Any

from azure.core.exceptions import AzureError


def words_of(error: AzureError) -> str:
    """Return the service's own words, in one line: the SDK drops them for some statuses, but keeps the response."""
    response: Any = getattr(error, "response", None)
    if response is not None:
        match = re.search(r"<Detail>(.*?)</Detail>", response.text(), re.DOTALL)
        if match:
            return first_line(re.sub(r"^SubCode=\d+\. ", "", _unescaped(match[1])))
    return first_line(error.message or error)


def _unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def first_line(text: object) -> str:
    """Return the first line of a text, or the name of its type when it has none."""
    lines = str(text).strip().splitlines()
    return lines[0] if lines else type(text).__name__
