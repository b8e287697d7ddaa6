"""The command that started this program, for messages with a command to run."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "arbora"


def name_program(text: str) -> str:
    """The text with its commands, `arbora …` between backquotes, as the shell finds them."""
    return text.replace(f"`{NAME} ", f"`{program_name()} ")


def program_name() -> str:
    """`arbora`, or this program's path if the shell would not find it under that name."""
    called = Path(sys.argv[0])
    if called.name != NAME:
        return NAME
    found = shutil.which(NAME)
    if found is not None and called.exists() and os.path.samefile(found, called):
        return NAME
    return shlex.quote(sys.argv[0])
