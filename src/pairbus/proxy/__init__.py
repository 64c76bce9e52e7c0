"""A proxy."""
