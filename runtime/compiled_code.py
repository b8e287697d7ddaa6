"""numba's cache of machine code: one directory for each version of a folder's sources.

numba itself checks only the file of a function. So it would reuse code that was compiled with an older helper
or constant from another file, and fail on code whose argument types have been renamed.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from .cache_directory import cache_directory, note_use

FORMAT = Path(__file__).with_name("automaton_format.py")  # grammars and kernels contain its constants


def version(folder: Path) -> str:
    """A hash of the folder's sources and of the file `FORMAT`: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for source in (FORMAT, *sorted(folder.rglob("*.py"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def directory(folder: Path) -> str:
    """Where numba keeps the folder's code: `NUMBA_CACHE_DIR`, otherwise a directory for this version."""
    return os.environ.get("NUMBA_CACHE_DIR") or str(cache_directory(f"{folder.name}-{version(folder)}"))


def use_directory(folder: Path) -> str:
    """Makes `directory(folder)` or notes its use, and deletes the code of versions that were not used for a
    month."""
    path = directory(folder)
    if "NUMBA_CACHE_DIR" not in os.environ:
        with suppress(OSError):  # numba finds another directory, or none
            Path(path).mkdir(parents=True, exist_ok=True)
        note_use(Path(path), f"{folder.name}-*")
    return path
