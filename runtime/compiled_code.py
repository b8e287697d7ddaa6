"""numba's cache of machine code: one directory for each version of a folder's sources.

numba itself checks only the file of a function. So it would reuse code that was compiled with an older helper
or constant from another file, and fail on code whose argument types have been renamed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from .cache_directory import cache_directory

FORMAT = Path(__file__).with_name("automaton_format.py")  # grammars and kernels contain its constants
KEPT_S = 30 * 24 * 3600.0  # since it was set up; another checkout or a running server may still use it


def version(folder: Path) -> str:
    """A hash of the folder's sources and of the file `FORMAT`: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for source in (FORMAT, *sorted(folder.rglob("*.py"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def directory(folder: Path) -> str:
    """Where numba keeps the folder's code: `NUMBA_CACHE_DIR`, otherwise a directory for this version."""
    return os.environ.get("NUMBA_CACHE_DIR") or str(cache_directory(f"{folder.name}-{version(folder)}"))


def remove_other_versions(folder: Path) -> None:
    """Deletes the code of other versions that were set up more than a month ago."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    current = Path(directory(folder))
    with suppress(OSError):
        os.utime(current)
    for path in current.parent.glob(f"{folder.name}-*"):
        with suppress(OSError):
            if path != current and time.time() - path.stat().st_mtime > KEPT_S:
                shutil.rmtree(path, ignore_errors=True)
