"""Stores of several processes: one for all of a machine, and the same rows in all of them."""
