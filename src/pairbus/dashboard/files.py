"""Reads the files for the browser, once. A request can name only these files: no path leads to the disk."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from aiohttp import web

from pairbus.dashboard.guard import HEADERS

INDEX = "index.html"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    by_name = {}
    for file in files(__package__).joinpath("static").iterdir():
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            by_name[file.name] = file.read_bytes(), kind
    return by_name


def file_answer(name: str) -> web.Response:
    """Answer with a file of the page; 404 for any other name."""
    file = _files().get(name)
    if file is None:
        raise web.HTTPNotFound(text="there is no such file")
    body, kind = file
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)
