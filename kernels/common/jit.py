"""numba's compiler without fast-math: every operation rounds as IEEE 754 prescribes.

For kernels whose results must not depend on the compiler: sampling, automata, quantized products. The others
use `numba_tools.compiled`, which may add in another order.
"""

from collections.abc import Callable
from typing import Any, TypedDict

import numba

from ...runtime.loaded_code import cached_njit


class _Options(TypedDict):
    nogil: bool
    fastmath: bool
    error_model: str


# An explicit "no fastmath": otherwise a function inherits it from its first caller.
_STRICT: _Options = {"nogil": True, "fastmath": False, "error_model": "numpy"}


def compiled(function: Callable[..., Any]) -> Any:
    """Compile without the GIL, and keep the machine code on disk where a directory for it is writable."""
    return cached_njit(function, **_STRICT)


def inlined(function: Callable[..., Any]) -> Any:
    """Inline into the callers, so that their loops can be vectorised."""
    return numba.njit(forceinline=True, **_STRICT)(function)
