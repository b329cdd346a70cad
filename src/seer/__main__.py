"""`python -m seer` is the command `seer`."""

import sys

from seer.cli import main

if __name__ == "__main__":
    sys.exit(main())
