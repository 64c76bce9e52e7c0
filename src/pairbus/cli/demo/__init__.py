"""`pairbus demo`: an outage of a pair, from the first send to the last check."""
