"""Every test here runs on each kind of storage, or on Azurite alone."""

from __future__ import annotations

from tests.storage.fixtures import azurite, location, storage

__all__ = ["azurite", "location", "storage"]
