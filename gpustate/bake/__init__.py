"""Bake a policy into the mounted root of an image; the rest runs at the first boot."""
