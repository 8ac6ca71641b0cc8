"""The error of every subcommand of `ibp-gnn`."""

from __future__ import annotations


class CommandError(Exception):
    """What the user has to know to make the command work."""
