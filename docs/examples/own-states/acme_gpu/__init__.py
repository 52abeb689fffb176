"""States of our own."""
