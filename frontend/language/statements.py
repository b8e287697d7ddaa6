"""Where a program's statements stand, for errors and traces."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import NamedTuple

_OWN = str(Path(__file__).parent)


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
