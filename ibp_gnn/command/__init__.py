"""The command `ibp-gnn`."""
