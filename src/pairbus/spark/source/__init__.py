"""`format("servicebus")` as a source: batch reads, streams that receive, and streams that peek."""
