"""What the repositories of an inventory's nodes offer, and the driver sets, lock files and bundles made of it."""
