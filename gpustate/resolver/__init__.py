"""Query package repositories of nodes, and resolve driver sets, lock files and bundles from them."""
