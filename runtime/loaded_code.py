"""Functions whose machine code numba keeps on disk, loaded without the modules that only compiling needs.

Before numba loads any code, it imports its implementations of Python's and NumPy's operations, which takes
11 MiB and 0.1 s in each process. Compiling needs and imports them; here loading does not. So such a function
must not hash text or bytes: only one of these modules gives machine code the secret key of Python's hashes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.runtime.nrt import rtsys


class _Cache(FunctionCache):  # type: ignore[misc]
    def load_overload(self, signature: object, target: object) -> object:
        rtsys.initialize(target)  # gives machine code the runtime's functions for memory
        with self._guard_against_spurious_io_errors():
            return self._load_overload(signature, target)
        return None  # on Windows, the context suppresses errors of access to the directory


def cached_njit(function: Callable[..., Any], **options: Any) -> Any:
    """`numba.njit` with these options, for a function whose machine code is kept on disk.

    If no directory for it is writable, each process compiles the function.
    """
    compiler: Any = numba.njit
    compiled = compiler(**options)(function)
    _use_disk_cache(compiled, function)
    return compiled


def cached_cfunc(function: Callable[..., Any], signature: Any, **options: Any) -> Any:
    """As `cached_njit`, for `numba.cfunc`. signature: for example `types.void(types.int64)`."""
    compiled: Any = CFunc(function, (signature.args, signature.return_type), {}, options)
    _use_disk_cache(compiled, function)
    compiled.compile()
    return compiled


def _use_disk_cache(compiled: Any, function: Callable[..., Any]) -> None:
    try:
        compiled._cache = _Cache(function)
    except RuntimeError:  # no directory is writable
        return
