"""Trouble on demand: a proxy that plays a failing network, for tests of what an application does about it."""

from pairbus.testing.nemesis import Nemesis, NemesisThread

__all__ = ["Nemesis", "NemesisThread"]
