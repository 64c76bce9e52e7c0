"""Hosts: which of them are this machine, and how a URL writes them."""

from __future__ import annotations

import ipaddress

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether the host, a name or an address without brackets, is this machine and no other can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def in_url(host: str) -> str:
    """The host as it stands before a port: addresses of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
