"""Numbers of a namespace for its operator: operations, metrics, an overview, health and changes."""
