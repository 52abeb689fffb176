"""Driver sets, lock files and bundles, as the package managers of nodes choose them."""
