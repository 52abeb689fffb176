"""Walking nodes: one node after its own graph, many nodes side by side."""
