"""One node from probe to outcome, and many nodes side by side."""
