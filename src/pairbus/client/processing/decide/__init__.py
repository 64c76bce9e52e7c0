"""The decisions of a processor. Nothing here does I/O or reads a clock: times are arguments, in seconds."""
