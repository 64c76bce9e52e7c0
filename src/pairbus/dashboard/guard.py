"""Guards the page: checks host, origin and token of a request, and sets the headers that bind the browser.

Laws of this file.
 1. A request that makes a change is no GET, and has a header that no foreign page can set without permission.
 2. A request that names an origin names ours: the same host and port.
 3. A token comes in a header. It is compared in constant time, and never written anywhere.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from urllib.parse import urlsplit

from aiohttp import web

from pairbus.auth.gate import ForeignRequest, check_request_source

TOKEN_HEADER = "X-Pairbus-Token"
CHANGE_HEADER = "X-Pairbus-Page"
READING = ("GET", "HEAD")
OWN_SITES = ("same-origin", "none")

# The browser enforces these rules, whatever a message contains: no script, style or frame from elsewhere or inline.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Opens = Callable[[str], bool]
"Tells whether a token opens the page."


class Denied(Exception):
    """The page does not answer the request; the error carries the HTTP status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Guard:
    """Rules for the requests of one page. Without `opens` no token is asked for."""

    def __init__(self, opens: Opens | None, hosts: frozenset[str] = frozenset()) -> None:
        """Make a guard. `hosts`: names, in lower case, that browsers may use besides loopback names and addresses."""
        self._opens = opens
        self._hosts = hosts

    def check_host(self, request: web.Request) -> None:
        """Refuse requests for another server: names that a foreign page bound to our address."""
        try:
            check_request_source(request.headers.getall("Host", []), None, self._hosts)
        except ForeignRequest as error:
            raise Denied(error.status, str(error)) from None

    def check(self, request: web.Request) -> None:
        """Pass a request to the API, or raise Denied."""
        self.check_host(request)
        _check_origin(request)
        if request.method not in READING and request.headers.get(CHANGE_HEADER) != "1":
            raise Denied(403, f"a request that changes something needs the header {CHANGE_HEADER}: 1")
        if self._opens is not None and not self._opens(request.headers.get(TOKEN_HEADER, "")):
            raise Denied(401, f"the header {TOKEN_HEADER} is missing or wrong")


def _check_origin(request: web.Request) -> None:
    origin = request.headers.get("Origin")
    if origin is not None and _authority(origin) != request.host.lower():
        raise Denied(403, f"requests of web pages from {origin!r:.200} are refused")
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in OWN_SITES:
        raise Denied(403, "requests of web pages from another site are refused")


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def same_token(expected: str) -> Opens:
    """Return the check for one token."""
    return lambda token: hmac.compare_digest(token.encode("utf-8", "replace"), expected.encode())
