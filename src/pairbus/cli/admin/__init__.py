"""Commands that administer a namespace, ours or Azure's: queues, topics, subscriptions, rules."""
