"""numba's cache of machine code: one directory for each version of a folder's sources.

numba itself checks only the file of a function. So it would reuse code that was compiled with an older helper
or constant from another file, and fail on code whose argument types have been renamed.
"""

from __future__ import annotations

import gc
import hashlib
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

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


def forget_intermediate_code() -> None:
    """Frees LLVM's form of the functions that numba has loaded from its cache; their machine code stays.

    numba keeps it to link functions that it compiles later. It is parsed again when such a function needs it,
    from bitcode that takes an eighth of the memory. No effect if a version of numba stores it elsewhere.
    """
    from llvmlite import binding
    from numba.core.codegen import CodeLibrary

    for library in [found for found in gc.get_objects() if issubclass(type(found), CodeLibrary)]:
        module = getattr(library, "_shared_module", None)
        if isinstance(module, binding.ModuleRef) and hasattr(library, "_get_module_for_linking"):
            library._get_module_for_linking = partial(_parsed_again, library, module.as_bitcode())
            library._shared_module = None
            module.close()


def _parsed_again(library: Any, bitcode: bytes) -> Any:
    if library._shared_module is None:
        from llvmlite import binding

        library._shared_module = binding.parse_bitcode(bitcode)
    return library._shared_module
