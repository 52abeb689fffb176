"""Changes of nodes that a scheduler fills: which node may change when, and in and out of service around it."""
