"""Hosts: loopback addresses, and host names in URLs."""

from __future__ import annotations

import ipaddress

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Return True for a host (a name, or an address without brackets) that only this machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_address(host: str) -> bool:
    """Return True for an IP address, which, unlike a name, cannot be rebound by DNS."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def in_url(host: str) -> str:
    """Return the host as a URL has it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host
