"""Send availability without I/O and without a clock: who sends where, when, and what becomes of each message."""
