"""Import this before Triton: its kernels then run on `DEVICE`, without a GPU in Triton's interpreter."""

import os
import sys
from functools import cache
from types import FunctionType
from typing import Any

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def patch_each_language_once_in_a_launch() -> None:
    """The interpreter replaces the functions of `triton.language` for each call within a kernel, which takes
    longer than most calls."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched = set[frozenset[str]]()

    @cache
    def languages(function: FunctionType) -> frozenset[str]:
        return frozenset(each.__name__ for each in (tl, tl.core) if each in function.__globals__.values())

    def patch_once(function: FunctionType) -> Any:
        if languages(function) in patched:
            return None
        patched.add(languages(function))
        return patch(function)

    def launch_alone(executor: interpreter.GridExecutor, *arguments: Any, **options: Any) -> None:
        patched.clear()
        launch(executor, *arguments, **options)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, launch_alone


if DEVICE.type == "cpu":
    assert "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1", "Triton was imported"
    os.environ["TRITON_INTERPRET"] = "1"
    patch_each_language_once_in_a_launch()
