"""Splits locations in Azure into their parts, by their forms.

| written as                                              | account     | container   |
| ------------------------------------------------------- | ----------- | ----------- |
| `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH`   | the host's  | before the @ |
| `https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH`  | the host's  | of the path |
| `http://127.0.0.1:PORT/ACCOUNT/CONTAINER/PATH`          | of the path | of the path |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from pairbus.errors import ConfigError

FORMS = "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH or https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH"
_HOST = re.compile(r"([a-z0-9]{3,24})(?:-secondary)?\.(?:blob|dfs)\.[a-z0-9.-]+")
_CONTAINER = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_LATER = frozenset({"s3", "s3a", "s3n"})


@dataclass(frozen=True, slots=True)
class BlobLocation:
    """A place in a container."""

    text: str
    "The location as it was given."
    account: str
    account_url: str
    container: str
    path: str
    "Prefix of every key: empty, or ending in a slash."


def is_url(location: str) -> bool:
    return "://" in location


def parse(location: str) -> BlobLocation:
    """Read a location in an object store. ConfigError shows only the text before a question mark."""
    bare = location.partition("?")[0].partition("#")[0]
    if bare != location:
        raise ConfigError(
            f"{bare}: a location must hold no token, because logs and plans show it: leave out everything from the '?'"
            " on, and give the place of the token as the storage credential"
        )
    try:
        parts = urlsplit(location)
        parts.port  # noqa: B018 - raises when the port is not a number
    except ValueError as error:
        raise ConfigError(f"{location} is not a location: {error}") from None
    if parts.password is not None:
        raise ConfigError(f"{parts.scheme}://…: a location must hold no password, because logs and plans show it")
    if parts.scheme in _LATER:
        raise ConfigError(f"{location}: S3 is not supported yet; give a folder, or a place in Azure: {FORMS}")
    if parts.scheme == "abfss":
        return _of_container_and_host(location, parts)
    if parts.scheme in ("https", "http"):
        return _of_path(location, parts)
    raise ConfigError(f"{location} is not a location that can be used: give the path of a folder, or {FORMS}")


def _of_container_and_host(location: str, parts: SplitResult) -> BlobLocation:
    host = parts.hostname or ""
    account = _HOST.fullmatch(host)
    if account is None or not parts.username:
        raise ConfigError(f"{location} is not written as {FORMS}")
    url = f"https://{host.replace('.dfs.', '.blob.', 1)}"
    return _made(location, account[1], url, parts.username, parts.path)


def _of_path(location: str, parts: SplitResult) -> BlobLocation:
    host = parts.hostname or ""
    segments = parts.path.strip("/")
    if host in _LOOPBACK:
        name, _, segments = segments.partition("/")
        url = f"{parts.scheme}://{parts.netloc}/{name}"
    elif parts.scheme == "http":
        raise ConfigError(f"{location}: http is for this machine alone; write https")
    else:
        account = _HOST.fullmatch(host)
        if account is None or parts.username:
            raise ConfigError(f"{location} is not written as {FORMS}")
        name, url = account[1], f"https://{parts.netloc.replace('.dfs.', '.blob.', 1)}"
    container, _, path = segments.partition("/")
    return _made(location, name, url, container, path)


def _made(location: str, account: str, url: str, container: str, path: str) -> BlobLocation:
    if _CONTAINER.fullmatch(container) is None:
        raise ConfigError(f"{location}: {container!r} is not the name of a container; write {FORMS}")
    inner = unquote(path).strip("/")
    if any(segment in ("", ".", "..") for segment in inner.split("/")) and inner:
        raise ConfigError(f"{location}: a path must not have empty segments, '.' or '..'")
    return BlobLocation(location, account, url, container, f"{inner}/" if inner else "")
