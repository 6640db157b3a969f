"""`python -m heliograph`: the `heliograph` command."""

import sys

from heliograph.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
