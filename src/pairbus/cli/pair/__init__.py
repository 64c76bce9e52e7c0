"""Commands for a pair and its clients: create, check, status, clients, spool, the estimate of costs."""
