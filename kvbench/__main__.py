"""`python -m kvbench`."""

import sys

from kvbench.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
