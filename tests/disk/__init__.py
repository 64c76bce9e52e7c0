"""Locks, commit numbers and private folders, and systems that lack what POSIX has."""
