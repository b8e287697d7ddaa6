"""Where Arbora keeps files that it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory(name: str) -> Path:
    """`$XDG_CACHE_HOME/arbora/name`, by default in `~/.cache`. It may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arbora" / name
