"""numba's cache of machine code: one directory for each version of a folder's sources.

numba itself checks only the file of a function. It would reuse code that was compiled with an older helper or
constant from another file, and fail at code whose argument types have another name now.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from .cache_directory import cache_directory

FORMAT = Path(__file__).with_name("automaton_format.py")  # its constants are part of grammars and kernels
KEPT_S = 30 * 24 * 3600.0  # another checkout or a running server may use another version's code


def version(folder: Path) -> str:
    """A hash of the folder's sources and of the file `FORMAT`: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for source in (FORMAT, *sorted(folder.rglob("*.py"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def directory(folder: Path) -> str:
    """Where numba keeps the folder's code if it can write there: `NUMBA_CACHE_DIR`, else a directory for this
    version."""
    return os.environ.get("NUMBA_CACHE_DIR") or str(cache_directory(f"{folder.name}-{version(folder)}"))


def remove_other_versions(folder: Path) -> None:
    """Deletes the code of versions that were not set up for a month."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    current = Path(directory(folder))
    with suppress(OSError):
        os.utime(current)
    for path in current.parent.glob(f"{folder.name}-*"):
        with suppress(OSError):
            if path != current and time.time() - path.stat().st_mtime > KEPT_S:
                shutil.rmtree(path, ignore_errors=True)
