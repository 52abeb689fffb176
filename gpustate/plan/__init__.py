"""Plans: made from observations, kept as documents, rendered for people. Pure."""
