"""What to do when the reader of standard output has ended, as `head` does."""

import os
import sys


def drop_output() -> None:
    """Sends the rest of standard output nowhere. When Python exits, it flushes standard output again, which
    must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
