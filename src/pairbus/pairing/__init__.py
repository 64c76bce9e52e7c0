"""Send availability without I/O and without a clock: the decisions where and when each message is sent."""
