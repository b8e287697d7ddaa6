"""numba's compilers, with and without fast-math."""

from collections.abc import Callable
from typing import Any, TypedDict

import numba

from ...runtime.loaded_code import cached_njit

FAST = {"reassoc", "nsz", "contract", "arcp", "afn"}
"""Fast-math without the flags that assume no infinities and NaN: these must reach the caller."""


class _Options(TypedDict):
    nogil: bool
    fastmath: bool
    error_model: str


# An explicit "no fastmath": otherwise a function inherits it from its first caller.
_STRICT: _Options = {"nogil": True, "fastmath": False, "error_model": "numpy"}


def compiled(function: Callable[..., Any]) -> Any:
    """Compiles a kernel on first use. Every operation rounds as IEEE 754 prescribes, so results do not depend
    on the compiler: for sampling, automata and quantized products.

    The machine code is kept on disk where a directory for it is writable. The kernel runs without the GIL.
    """
    return cached_njit(function, **_STRICT)


def inlined(function: Callable[..., Any]) -> Any:
    """As `compiled`, but inlines the function into its callers, so that their loops can be vectorised."""
    return numba.njit(forceinline=True, **_STRICT)(function)


def insert_into_caller(function: Callable[..., Any]) -> Any:
    """Has numba copy a large function into its callers before LLVM compiles them. If they called it, LLVM
    would compile its code by itself and again in each caller. The callers' fast-math flags apply to it."""
    return numba.njit(inline="always", error_model="numpy")(function)


def compiled_fast(function: Callable[..., Any]) -> Any:
    """As `compiled`, but sums may be added in another order (see `FAST`)."""
    return cached_njit(function, nogil=True, fastmath=FAST, error_model="numpy")
