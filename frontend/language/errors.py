"""The language's errors, and the statements of a program that they name."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import NamedTuple

_OWN = str(Path(__file__).parent)


class ProgramError(Exception):
    """A statement of a program failed. The message names it; `__cause__` is the backend's error, if any."""


class UnknownNameError(ProgramError, KeyError):
    """A program reads the value of a name that no call has."""

    __str__ = Exception.__str__  # `KeyError.__str__` would put quotes around the message


class BackendError(Exception):
    """The backend can't be reached, or did not answer a call."""


class NoServerError(BackendError):
    """No server has answered at the backend's address."""


class Statement(NamedTuple):
    file: str
    line: int

    def __str__(self) -> str:
        source = linecache.getline(self.file, self.line).strip()
        return f"{Path(self.file).name}:{self.line}" + (f": `{source}`" if source else "")


def current_statement() -> Statement:
    """The innermost statement outside of this folder that is being executed."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return Statement(frame.f_code.co_filename, frame.f_lineno)
