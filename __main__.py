"""`python -m arbora` is `arbora`."""

import sys

from .frontend.cli.main import main

sys.exit(main())
