"""`python -m runnel` is the `runnel` command."""

import sys

from runnel.cli.main import main

sys.exit(main())
