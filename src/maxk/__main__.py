"""``python -m maxk`` is ``maxk``."""

import sys

from maxk.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
