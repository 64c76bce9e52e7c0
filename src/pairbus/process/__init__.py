"""The process and its operating system, where systems differ."""
