"""Switches for testers of applications: the clock, a reset, recorded sends, and the requests that use them."""
