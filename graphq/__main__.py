"""The command `graphq`, for `python -m graphq`."""
import sys

from graphq.cli import main

sys.exit(main())
