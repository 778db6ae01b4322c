"""`python -m infera_router`."""

import sys

from infera_router.cli import main

sys.exit(main())
