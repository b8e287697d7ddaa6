"""Run compiled kernels on the threads that PyTorch computes with.

PyTorch's OpenMP workers spin for a while after each operation. A second pool, such as numba's own, would
compete with them for the cores, so our parallel regions start through the same OpenMP library (GOMP_parallel,
which libgomp exports and libiomp5 mimics). Without it kernels run on the calling thread.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numba import types

from ...runtime.loaded_code import cached_cfunc
from .jit import FAST, insert_into_caller

THREADED_ELEMENTS = 32_768
"""Elements of an elementwise operation from which several threads are faster than one."""

PIECE = 4_096
"""Elements of an elementwise operation that a thread takes at a time, approximately."""


MIN_PIECE = 512
"""Elements that a thread takes at a time, at least, where there are too few pieces for all threads."""


def thread_count(elements: int = THREADED_ELEMENTS) -> int:
    """The number of threads for an elementwise operation of this size (by default, a large one)."""
    return torch.get_num_threads() if elements >= THREADED_ELEMENTS else 1


Call = tuple["ParallelKernel", tuple[int, ...]]
"""a kernel and its arguments without the counter"""

_recorded: list[Call] | None = None
"""calls since `recorded_calls` began; None: kernels run"""


@contextmanager
def recorded_calls() -> Iterator[list[Call]]:
    """Records the calls of kernels in a list, for a `Program`. Meanwhile no kernel runs."""
    global _recorded
    assert _recorded is None, "a recording is running"
    _recorded = []
    try:
        yield _recorded
    finally:
        _recorded = None


def is_recording() -> bool:
    return _recorded is not None


class ParallelKernel:
    """A kernel `function(int64 *arguments)` whose work any number of threads share.

    arguments[0] is 0 at the start; threads advance it to take pieces of the work. The function is compiled,
    or its machine code read from disk, when it is first used.
    """

    def __init__(self, function: Callable[..., Any], *constants: int | np.generic) -> None:
        """constants: values that the function gets after the arguments, for which it is compiled; it must be
        compiled by numba then"""
        self._function, self._constants = function, constants
        self._buffers: list[ctypes.Array[ctypes.c_char]] = []
        """reused for arguments; a run in another Python thread may find the list empty and adds a buffer"""

    @cached_property
    def address(self) -> int:
        """address of the machine code"""
        # numba's object is not kept: it holds LLVM's form of the function, megabytes for all kernels. The
        # machine code stays without it, because numba never frees machine code.
        signature = types.void(types.CPointer(types.int64))
        function, fast = self._function, FAST
        if self._constants:
            function, fast = _bind(self._function, self._constants)
        compiled = cached_cfunc(function, signature, fastmath=fast, error_model="numpy")
        return int(compiled.address)

    @cached_property
    def _call(self) -> Callable[[object], None]:
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)

    def load(self) -> None:
        """Compiles the function, or reads its machine code from disk, now rather than with the first run."""
        _ = self.address

    def run(self, arguments: Sequence[int], threads: int) -> None:
        """Run on this many threads and wait for all. `arguments` exclude the counter."""
        if _recorded is not None:
            _recorded.append((self, tuple(arguments)))
            return
        packing = _packing(len(arguments) + 1)
        buffer = self._buffer(packing.size)
        packing.pack_into(buffer, 0, 0, *arguments)
        parallel = _gomp_parallel() if threads > 1 else None
        if parallel is None:
            self._call(buffer)
        else:
            parallel(self.address, buffer, threads, 0)
        self._buffers.append(buffer)

    def _buffer(self, size: int) -> ctypes.Array[ctypes.c_char]:
        try:
            buffer = self._buffers.pop()
        except IndexError:
            return ctypes.create_string_buffer(size)
        return buffer if len(buffer) >= size else ctypes.create_string_buffer(size)


def _bind(kernel: Any, constants: tuple[int | np.generic, ...]) -> tuple[Callable[[Any], None], Any]:
    """Returns a function that contains a kernel with its constants, and the kernel's fast-math flags. The
    function's name is unique, because its machine code is kept on disk by this name."""
    names = {f"constant_{index}": value for index, value in enumerate(constants)}
    space: dict[str, Any] = {"kernel": insert_into_caller(kernel.py_func), **names, "__name__": __name__}
    source = f"def bound(arguments): kernel(arguments, {', '.join(names)})"
    exec(compile(source, __file__, "exec"), space)
    bound: FunctionType = space["bound"]
    values = [f"{type(each).__name__}{each}" for each in constants]
    bound.__qualname__ = "_".join([kernel.__module__, kernel.__name__, *values])
    return bound, kernel.targetoptions["fastmath"]


@cache
def _packing(count: int) -> struct.Struct:
    return struct.Struct(f"={count}q")


@cache
def _gomp_parallel() -> Callable[[int, object, int, int], None] | None:
    try:
        function = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function
