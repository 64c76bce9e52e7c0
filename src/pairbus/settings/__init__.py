"""Settings of queues, topics and subscriptions, and the durations in which many of them are written."""
