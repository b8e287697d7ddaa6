"""numba's cache of machine code: one directory for each version of these sources.

numba itself checks only the file of a function, so it would reuse code that was compiled with an older helper
or constant from another file.
"""

import hashlib
import os
import shutil
from pathlib import Path

import numba


def keep_per_version() -> None:
    """Call this before any kernel is defined. The environment's `NUMBA_CACHE_DIR` takes precedence."""
    if "NUMBA_CACHE_DIR" not in os.environ:
        numba.config.CACHE_DIR = str(_directory())  # type: ignore[attr-defined]


def remove_other_versions() -> None:
    """Removes the directories of other versions."""
    current = _directory()
    for directory in current.parent.glob("kernels-*"):
        if directory != current:
            shutil.rmtree(directory, ignore_errors=True)


def version() -> str:
    """A hash of these sources."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "arbora" / f"kernels-{version()}"
