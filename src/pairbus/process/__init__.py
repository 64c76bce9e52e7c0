"""Features of a process that not every operating system has."""
