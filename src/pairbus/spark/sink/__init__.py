"""`format("servicebus")` as a sink, of batches and of streams."""
