"""A policy in the mounted root of an image, and the rest of it at the first boot."""
