"""numba's `njit` for grammars/, with a cache of machine code for each version of these sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from ...runtime import compiled_code
from ...runtime.loaded_code import cached_njit

FOLDER = Path(__file__).parents[1]
_DIRECTORY = compiled_code.use_directory(FOLDER)


def njit(**options: bool) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with these options. If no directory is writable, each process compiles the code."""
    cached = options.pop("cache", False)

    def decorate(function: Callable[..., Any]) -> Any:
        config: Any = numba.config
        compiler: Any = numba.njit
        if not cached:
            return compiler(**options)(function)
        others, config.CACHE_DIR = config.CACHE_DIR, _DIRECTORY
        try:
            return cached_njit(function, **options)
        finally:
            config.CACHE_DIR = others

    return decorate
