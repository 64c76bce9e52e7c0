"""The decisions of a syphon, without I/O and without a clock: what goes home, what waits, what is dead-lettered,
and how fast."""
