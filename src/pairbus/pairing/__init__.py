"""The decisions where and when each message of a client is sent, without I/O and without a clock."""
