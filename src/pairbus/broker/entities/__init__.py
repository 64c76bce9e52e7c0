"""Queues, topics and subscriptions, and the life of a message in them. No I/O."""
