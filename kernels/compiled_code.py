"""Where numba keeps machine code: a directory for each version of these sources.

numba's own check looks at the file of a function alone, and would go on using code that was compiled
with an older helper or constant from another file.
"""

import hashlib
import os
import shutil
from pathlib import Path

import numba


def keep_per_version() -> None:
    """Must come before the first kernel is defined. `NUMBA_CACHE_DIR` of the environment goes before."""
    if "NUMBA_CACHE_DIR" not in os.environ:
        numba.config.CACHE_DIR = str(_directory())  # type: ignore[attr-defined]


def remove_other_versions() -> None:
    """Frees the disk of what earlier versions left."""
    current = _directory()
    for directory in current.parent.glob("kernels-*"):
        if directory != current:
            shutil.rmtree(directory, ignore_errors=True)


def version() -> str:
    """Of these sources."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "arbora" / f"kernels-{version()}"
