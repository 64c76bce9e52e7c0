"""Reports from ledgers: a bill, the availability of entities, and an HTML page."""
