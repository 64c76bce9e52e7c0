"""The staging location of a stream: received messages, and a log that says in which order they became Spark's."""
