"""Import this before Triton: its kernels then run on `DEVICE`, without a GPU in Triton's interpreter."""

import os
import sys
from dataclasses import replace
from functools import cache
from math import prod
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


def leave_out_unused_overflow_checks() -> None:
    """The interpreter computes each sum and product of integers a second time in 64 bits to compare it with
    the limits of its type, a third of all time. Outside its debug mode it does not use the result."""
    from triton.runtime import interpreter

    options = interpreter.interpreter_builder.options
    if not options.debug:
        interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)


def remember_types() -> None:
    """The interpreter builds a table of all types for each operation, and a type and a shape for each result.
    They depend only on the type's name, or on a block's elements and sizes."""
    import triton.language as tl
    from triton.runtime import interpreter

    describe, start = interpreter._get_np_dtype, tl.block_type.__init__
    dtypes = dict[str, Any]()
    blocks = dict[str, dict[str, Any]]()
    shapes = dict[str, dict[str, Any]]()

    def dtype_of(kind: tl.dtype) -> Any:
        if kind.name not in dtypes:
            dtypes[kind.name] = describe(kind)
        return dtypes[kind.name]

    def start_block(block: tl.block_type, element_ty: tl.dtype, shape: Any) -> None:
        key = f"{element_ty.name} {[getattr(size, 'value', size) for size in shape]}"
        if key not in blocks:
            start(block, element_ty, shape)
            blocks[key] = {**vars(block)}
        vars(block).update(blocks[key])

    def start_tensor(tensor: tl.tensor, handle: Any, kind: tl.dtype) -> None:
        if kind.name not in shapes:
            shape = kind.shape if kind.is_block() else ()
            numel = tl.constexpr(prod(shape))
            shapes[kind.name] = {"shape": tl.tuple([tl.constexpr(size) for size in shape]), "numel": numel}
        vars(tensor).update(shapes[kind.name], handle=handle, type=kind, dtype=kind.scalar)

    interpreter._get_np_dtype = dtype_of
    tl.block_type.__init__, tl.tensor.__init__ = start_block, start_tensor


if DEVICE.type == "cpu":
    assert "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1", "Triton was imported"
    os.environ["TRITON_INTERPRET"] = "1"
    patch_each_language_once_in_a_launch()
    leave_out_unused_overflow_checks()
    remember_types()
