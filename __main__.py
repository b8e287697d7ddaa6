"""`python -m arbora` is `arbora`."""

import sys
from pathlib import Path

if Path(sys.path[0]).resolve() == Path(__file__).parent.resolve():
    del sys.path[0]  # the checkout's folder `kernels` would hide the package that transformers imports

from .frontend.cli.main import main

sys.exit(main())
