"""Custom states."""
