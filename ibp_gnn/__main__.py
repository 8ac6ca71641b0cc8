"""`python -m ibp_gnn` is the command `ibp-gnn`."""

import sys

from .command.cli import main

if __name__ == "__main__":
    sys.exit(main())
