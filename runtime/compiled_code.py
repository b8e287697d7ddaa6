"""numba's cache of machine code: one directory for each version of a folder's sources.

numba itself checks only the file of a function. It would reuse code that was compiled with an older helper or
constant from another file, and fail at code whose argument types have another name now.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path


def version(folder: Path) -> str:
    """A hash of the folder's sources, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for source in sorted(folder.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def directory(folder: Path) -> str:
    """Where numba keeps the folder's code: `NUMBA_CACHE_DIR`, else a directory for this version."""
    return os.environ.get("NUMBA_CACHE_DIR") or str(_parent() / f"{folder.name}-{version(folder)}")


def remove_other_versions(folder: Path) -> None:
    """Deletes the code of earlier versions."""
    current = f"{folder.name}-{version(folder)}"
    for path in _parent().glob(f"{folder.name}-*"):
        if path.name != current:
            shutil.rmtree(path, ignore_errors=True)


def _parent() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arbora"
