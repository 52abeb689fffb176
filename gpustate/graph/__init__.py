"""The dependency graph of states: edges with reasons, order, and output formats. Pure."""
