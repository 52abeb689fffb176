"""The order of states: what needs what, why, and how it is drawn. Pure."""
