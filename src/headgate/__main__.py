"""Runs the command line: python -m headgate."""

import sys

from headgate.cli import main

sys.exit(main())
