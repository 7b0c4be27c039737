"""`python -m graphq` is the command `graphq`."""
import sys

from graphq.cli import main

sys.exit(main())
