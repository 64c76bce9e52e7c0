"""The check of HTTP requests to a broker on this machine, against DNS rebinding and foreign web pages.

A web page anywhere can make a browser send requests to localhost, and by rebinding its own DNS name it can even
read the answers. The well-known development key would then open every queue. Two headers reveal the page, and
no script can forge them: Host names the page's own domain after a rebinding, Origin names it otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from pairbus.auth.hosts import LOOPBACK_HOSTS, is_address

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?", re.ASCII)


class ForeignRequest(Exception):
    """A request that was not meant for this broker; carries the HTTP status to answer with."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


LOCAL_ENDINGS = (".localhost", ".local", ".internal")
"Endings of names that no public DNS server answers."


def check_request_source(
    host_headers: Sequence[str], origin: str | None, hosts: frozenset[str], *, accepts_local_names: bool = False
) -> None:
    """Accept requests to a loopback name, one of `hosts` (lower-case) or an IP address; else raise ForeignRequest.

    `accepts_local_names`: also to any name that only a local network knows, such as that of a container.
    """
    if len(host_headers) != 1:
        raise ForeignRequest(400, "the request must have exactly one Host header")
    host = _host_of(host_headers[0])
    # An address cannot be rebound: a page from this address comes from the machine that has the address.
    is_known = host is not None and (host in LOOPBACK_HOSTS or host in hosts or is_address(host))
    if host is None or not (is_known or (accepts_local_names and _is_local_name(host))):
        raise ForeignRequest(
            421, f"this broker is not {host_headers[0]!r}; use localhost, or start the broker with --allowed-host"
        )
    if origin is None:
        return
    try:
        origin_host = (urlsplit(origin).hostname or "").rstrip(".")
    except ValueError:
        origin_host = ""
    if origin_host not in {*LOOPBACK_HOSTS, *hosts, host}:
        raise ForeignRequest(403, f"requests of web pages from {origin!r} are refused")


def _is_local_name(host: str) -> bool:
    """Return True for a name that its owner cannot rebind: a public name has a dot."""
    return "." not in host or host.endswith(LOCAL_ENDINGS)


def _host_of(authority: str) -> str | None:
    match = _AUTHORITY.fullmatch(authority)
    return (match[1] or match[2]).lower().rstrip(".") if match else None
