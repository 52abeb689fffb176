"""Bases of states that install a component beside the driver: what each of them would repeat, once."""
