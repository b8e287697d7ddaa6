"""numba's compiler as the sampling kernels use it."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile without the GIL, and cache the result where a writable directory for that exists."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        cached: Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable cache directory
        uncached: Function = numba.njit(**options)(function)
        return uncached
    return cached


def inlined(function: Function) -> Function:
    """Compile into the callers, so that their loops can be vectorised."""
    inline: Function = numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)
    return inline
