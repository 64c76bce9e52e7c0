"""Input and output of `pairbus message`: where messages are read from, and written to."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pairbus.cli.messages.input import StandardInput
from pairbus.cli.messages.output import writable_json
from pairbus.errors import ConfigError
from pairbus.explorer import BadMessage, encoded, importable, json_object

Fields = dict[str, Any]


async def bodies_of(
    body: str | None, standard_input: StandardInput, *, by_line: bool, as_objects: bool
) -> AsyncIterator[Fields]:
    """Yield the fields of each message from the argument or from standard input."""
    if body is not None:
        yield {"body": body}
    elif as_objects:
        number = 0
        async for line in standard_input.lines():
            number += 1
            if line.strip():
                yield json_object(line, f"standard input, line {number}")
    elif by_line:
        async for line in standard_input.lines():
            yield body_fields(line.rstrip(b"\r\n"))
    else:
        yield body_fields(await standard_input.whole())


def body_fields(data: bytes) -> Fields:
    """Return bytes as a body: text where it is UTF-8."""
    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        import base64

        return {"body": base64.b64encode(data).decode(), "body_type": "base64"}


async def messages_of(
    source: AsyncIterator[Fields], fields: Fields, delay_s: float | None, count: int
) -> AsyncIterator[bytes]:
    """Yield encoded messages; fields of the command line win over those of an object. Each message has an id."""
    number = 0
    async for message in source:
        number += 1
        for _ in range(count):
            own = dict(fields)
            if delay_s is not None:
                own["scheduled_enqueue_time"] = int((time.time() + delay_s) * 1000)
            try:
                payload = (
                    importable(message) if message.get("raw") and not own else encoded(_with_id({**message, **own}))
                )
            except BadMessage as error:
                raise BadMessage(f"message {number}: {error}") from None
            yield payload


def _with_id(fields: Fields) -> Fields:
    return fields if fields.get("message_id") is not None else {**fields, "message_id": str(uuid.uuid4())}


@contextmanager
def written_whole(file: Path | None) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes to standard output, or to FILE.part, which becomes FILE after success."""
    if file is None:
        yield lambda text: sys.stdout.write(writable_json(text))
        sys.stdout.flush()
        return
    part = file.with_name(file.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as out:
            yield out.write
        part.replace(file)
    except OSError as error:
        raise ConfigError(f"--out {file}: {error.strerror or error}") from None
