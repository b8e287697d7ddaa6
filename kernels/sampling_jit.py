"""numba's compiler as the sampling kernels use it."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile without the GIL, and cache the result where a writable directory for that exists."""
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)  # type: ignore[return-value]
    except RuntimeError:  # no writable cache directory
        return numba.njit(nogil=True, error_model="numpy")(function)  # type: ignore[return-value]


def inlined(function: Function) -> Function:
    """Compile into the callers, so that their loops can be vectorised."""
    return numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)  # type: ignore[return-value]
