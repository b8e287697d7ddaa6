"""numba's cache of machine code: one directory for each version of a folder's sources.

numba itself checks only the file of a function. So it would reuse code that was compiled with an older helper
or constant from another file, and fail on code whose argument types have been renamed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from .cache_directory import cache_directory, note_use

SHARED = [Path(__file__).with_name(f"{name}.py") for name in ("automaton_format", "json_gaps")]
"""shared files whose constants and code compiled grammars and kernels contain"""


def version(folder: Path) -> str:
    """A hash of the folder's sources and of the shared files: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for source in (*SHARED, *sorted(folder.rglob("*.py"))):
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
        with suppress(OSError):  # on failure numba finds another directory, or none
            Path(path).mkdir(parents=True, exist_ok=True)
        note_use(Path(path), f"{folder.name}-*")
    return path


class CompiledNote:
    """A file beside the machine code that numba has stored. It exists once numba has compiled all functions
    of a process, so that the process can start without compiling.

    It is valid only under the conditions on which numba uses its cache: the same sources at the same place,
    the same versions of numba and Python, the same kind of processor, and a directory that can be written.
    """

    def __init__(self, folder: Path) -> None:
        place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        self._directory = Path(directory(folder))
        self._file = self._directory / f"{folder.name}-{place}.compiled"
        facts = (version(folder), metadata.version("numba"), sys.implementation.cache_tag, processor())
        self._content = " ".join(map(str, facts))

    def write(self) -> None:
        with suppress(OSError):
            self._file.write_text(self._content)

    def holds(self) -> bool:
        try:
            return self._file.read_text() == self._content and os.access(self._directory, os.W_OK)
        except OSError:
            return False


def processor() -> str:
    """A hash of the processor's model and features."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        lines = [platform.machine(), platform.processor()]
    names = ("model", "cpu family", "flags", "Features", "CPU ")
    lasting = [line for line in lines if line.startswith(names)]
    return hashlib.sha256("\n".join(lasting or lines).encode()).hexdigest()[:16]
