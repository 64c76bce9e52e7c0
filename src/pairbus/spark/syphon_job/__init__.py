"""The syphon as a Spark job: rounds, tasks that pump, and the journal of the messages that came home."""
