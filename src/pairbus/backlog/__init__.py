"""The backlog message: how a message is changed on its way to a backlog queue, and restored on its way home. No I/O."""
