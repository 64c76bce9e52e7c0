"""The messages of one entity in memory: their order, their locks and their sessions. No I/O."""
