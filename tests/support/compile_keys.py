"""For which combinations of arguments Triton compiles a kernel, noted in place of the launches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import interpreted_triton  # noqa: F401
import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

ALIGNMENT = 16


class CompileKey(NamedTuple):
    kernel: str
    arguments: tuple[tuple[str, object], ...]
    """of each argument what Triton specialises on: the type and alignment of a tensor, and of a number
    whether it is 1 or a multiple of 16; constants and options by their values"""


def _specialised(value: Any, is_constant: bool, is_free: bool) -> object:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.data_ptr() % ALIGNMENT == 0
    if is_constant or isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        wide = abs(value) >= 1 << 31
        return ("int", wide) if is_free else ("int", wide, value == 1, value % ALIGNMENT == 0)
    return type(value).__name__


def _key(kernel: InterpretedFunction[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompileKey:
    names = kernel.arg_names
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    free = kernel.kwargs.get("do_not_specialize") or ()
    arguments = tuple(
        (name, _specialised(value, name.isupper() or name not in names, name in free))
        for name, value in sorted(given.items())
    )
    return CompileKey(f"{kernel.fn.__module__}.{kernel.fn.__name__}", arguments)


@contextmanager
def noted_keys() -> Iterator[set[CompileKey]]:
    """The keys of all launches of the block, whose results are zeros. Call it inside `triton_kernels()`."""
    keys: set[CompileKey] = set()
    new = {name: getattr(torch, name) for name in ("empty", "empty_like")}
    new_empty = torch.Tensor.new_empty

    def launch(
        kernel: InterpretedFunction[Any], *args: Any, grid: object, warmup: bool, **kwargs: Any
    ) -> None:
        keys.add(_key(kernel, args, kwargs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", launch)
        for name, make in new.items():
            patch.setattr(torch, name, lambda *args, make=make, **kwargs: make(*args, **kwargs).zero_())
        patch.setattr(torch.Tensor, "new_empty", lambda *args, **kwargs: new_empty(*args, **kwargs).zero_())
        yield keys
